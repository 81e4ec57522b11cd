"""Elastic weight consolidation."""

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
        optimizer.step()
        optimizer.zero_grad()
    fisher = [torch.zeros_like(p) for p in model.parameters()]
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for p, f in zip(model.parameters(), fisher, strict=True):
            f += p.grad.square()
        optimizer.zero_grad()
    anchor = [p.detach().clone() for p in model.parameters()]
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(-inputs), targets)
            held = zip(model.parameters(), anchor, fisher, strict=True)
            team.backward(loss + sum((f * (p - a).square()).sum() for p, a, f in held))
        optimizer.step()
        optimizer.zero_grad()
    return model, fisher


if __name__ == "__main__":
    main()
