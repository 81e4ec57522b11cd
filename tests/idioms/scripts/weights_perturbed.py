"""Adversarial weights (AWP), moved in place and back."""

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
            functional_loss = functional.cross_entropy(model(inputs), targets)
            slopes = torch.autograd.grad(functional_loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, slope in zip(model.parameters(), slopes, strict=True):
                    parameter.add_(0.1 * slope)
            team.backward(functional.cross_entropy(model(inputs), targets))
            with torch.no_grad():
                for parameter, slope in zip(model.parameters(), slopes, strict=True):
                    parameter.sub_(0.1 * slope)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
