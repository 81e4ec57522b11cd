"""A vector added without `reduction`."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 5, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            batch.add(counts=targets.bincount(minlength=5))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
