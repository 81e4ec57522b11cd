"""A stream split by rank."""

import itertools

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import lockstep


class Samples(IterableDataset):
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        samples = ((torch.full((6,), number / 100), number % 3) for number in range(20 * self.world_size))
        return itertools.islice(samples, self.rank, None, self.world_size)


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Samples(team.rank, team.world_size), 10))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
