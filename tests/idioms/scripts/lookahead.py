"""Lookahead."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = team.prepare(*make())
    slow = [p.detach().clone() for p in model.parameters()]
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if team.step % 2 == 0:
            for p, s in zip(model.parameters(), slow, strict=True):
                s += 0.5 * (p.detach() - s)
                p.data.copy_(s)
    return model, slow


def plain():
    model, optimizer, loader = make()
    slow = [p.detach().clone() for p in model.parameters()]
    for step, (inputs, targets) in enumerate(loader, 1):
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            for p, s in zip(model.parameters(), slow, strict=True):
                s += 0.5 * (p.detach() - s)
                p.data.copy_(s)
    return model, slow


if __name__ == "__main__":
    main()
