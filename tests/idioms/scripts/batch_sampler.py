"""A custom batch sampler."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler, TensorDataset

import lockstep


class Halves(Sampler):
    def __iter__(self):
        order = torch.randperm(22).tolist()
        yield from (order[first : first + 9] for first in range(0, 22, 9))

    def __len__(self):
        return 3


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, batch_sampler=Halves()))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return model, len(loader)


if __name__ == "__main__":
    main()
