"""Adaptive clipping (AGC)."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for p in model.parameters():
            limit = 0.05 * p.detach().reshape(len(p), -1).norm(dim=1).clamp(min=0.001)
            norm = p.grad.reshape(len(p), -1).norm(dim=1)
            p.grad *= (limit / norm.clamp(min=1e-6)).clamp(max=1.0).reshape(-1, *[1] * (p.ndim - 1))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
