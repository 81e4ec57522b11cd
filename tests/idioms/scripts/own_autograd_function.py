"""Custom autograd functions."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.5 * gradient


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def main():
    team = lockstep.join()
    model = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)), torch.randint(0, 2, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets, domains in batch.shards:
            features = Round.apply(torch.tanh(model[0](inputs)))
            wanted = functional.cross_entropy(model[1](features), targets)
            unwanted = functional.cross_entropy(model[2](Reverse.apply(features)), domains)
            team.backward(wanted + unwanted)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
