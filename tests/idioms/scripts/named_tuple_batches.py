"""Named tuples."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


class Sample(NamedTuple):
    x: torch.Tensor
    y: int


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [Sample(torch.randn(6), i % 3) for i in range(22)]
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for part in batch.shards:
            team.backward(functional.cross_entropy(model(part.x), part.y))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
