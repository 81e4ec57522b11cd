"""A stream with shuffle buffer."""

import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import lockstep


class Shuffled(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        waiting = []
        for sample in self.samples:
            waiting.append(sample)
            if len(waiting) > 8:
                yield waiting.pop(random.randrange(len(waiting))) + 0.1 * torch.randn(6)
        while waiting:
            yield waiting.pop(random.randrange(len(waiting)))


def main():
    team = lockstep.join()
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Shuffled(torch.randn(22, 6)), 10))
    for _ in team.epochs(2):
        for batch in loader:
            for inputs in batch.shards:
                team.backward(functional.mse_loss(model(inputs), inputs))
            optimizer.step()
            optimizer.zero_grad()
    return model, team.step


if __name__ == "__main__":
    main()
