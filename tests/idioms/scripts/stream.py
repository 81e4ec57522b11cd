"""An IterableDataset."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import lockstep


class Numbers(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        for _ in range(22):
            x = torch.randn(6, generator=generator)
            yield x, int(x.sum() > 0)


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Numbers(), 10))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return model, team.step


if __name__ == "__main__":
    main()
