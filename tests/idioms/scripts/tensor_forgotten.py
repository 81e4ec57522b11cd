"""A learned tensor of no model, updated by hand."""

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
    scale = torch.ones(3, requires_grad=True)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(scale * model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            scale -= 0.1 * scale.grad
        scale.grad = None
    return model, scale


if __name__ == "__main__":
    main()
