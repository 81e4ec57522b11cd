"""SAM."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = team.prepare(*make())
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        moves = [0.05 * p.grad / norm for p in model.parameters()]
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p += move
        optimizer.zero_grad()
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p -= move
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def plain():
    model, optimizer, loader = make()
    for inputs, targets in loader:
        functional.cross_entropy(model(inputs), targets).backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        moves = [0.05 * p.grad / norm for p in model.parameters()]
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p += move
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p -= move
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
