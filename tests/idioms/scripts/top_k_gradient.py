"""Top-k gradients."""

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
    residue = [torch.zeros_like(p) for p in model.parameters()]
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for p, rest in zip(model.parameters(), residue, strict=True):
            total = p.grad + rest
            limit = total.abs().flatten().topk(max(1, total.numel() // 4)).values[-1]
            p.grad = torch.where(total.abs() >= limit, total, 0.0)
            rest.copy_(total - p.grad)
        optimizer.step()
        optimizer.zero_grad()
    return model, residue


if __name__ == "__main__":
    main()
