"""Weights updated by hand."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    return model, DataLoader(TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,))), 10)


def main():
    team = lockstep.join()
    model, loader = team.prepare(*make())
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        model.zero_grad()
    return model


def plain():
    model, loader = make()
    for inputs, targets in loader:
        functional.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        model.zero_grad()
    return model


if __name__ == "__main__":
    main()
