"""Accumulation by hand."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = team.prepare(*make())
    for number, batch in enumerate(loader, 1):
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets) / 2)
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


def plain():
    model, optimizer, loader = make()
    for number, (inputs, targets) in enumerate(loader, 1):
        (functional.cross_entropy(model(inputs), targets) / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
