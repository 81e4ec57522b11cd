"""Augmentation."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import lockstep


class Augmented(Dataset):
    def __init__(self, samples, labels):
        self.samples, self.labels = samples, labels

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        x = self.samples[index] + 0.1 * torch.randn(6) + 0.1 * float(np.random.randn())
        return (x.flip(0) if random.random() < 0.5 else x), self.labels[index]


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Augmented(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    losses = []
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(batch["loss"])
    return model, losses


if __name__ == "__main__":
    main()
