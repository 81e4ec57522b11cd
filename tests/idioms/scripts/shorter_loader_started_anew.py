"""A shorter second loader, restarted."""

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
    short = TensorDataset(torch.randn(12, 6), torch.randint(0, 3, (12,)))
    model, optimizer, loader, short = team.prepare(
        model, optimizer, DataLoader(data, 10, shuffle=True), DataLoader(short, 10, shuffle=True)
    )
    others = iter(short)
    for batch in loader:
        other = next(others, None)
        if other is None:
            others = iter(short)
            other = next(others)
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for inputs, targets in other.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
