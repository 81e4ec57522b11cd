"""PCGrad."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randn(22, 2))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        found = []
        for task in range(2):
            for inputs, targets in batch.shards:
                team.backward(functional.mse_loss(model(inputs)[:, task], targets[:, task]))
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            optimizer.zero_grad()
        first, second = found
        overlap = torch.dot(first, second)
        total = first + second
        if overlap < 0:
            total = total - overlap / second.square().sum() * second - overlap / first.square().sum() * first
        for p, part in zip(model.parameters(), total.split([p.numel() for p in model.parameters()]), strict=True):
            p.grad = part.view_as(p)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
