"""Augmentation in loader workers."""

import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import lockstep


class Augmented(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index] + 0.1 * torch.randn(6) + 0.1 * random.random()


def main():
    team = lockstep.join()
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(Augmented(torch.randn(22, 6)), 10, shuffle=True, num_workers=1)
    model, optimizer, loader = team.prepare(model, optimizer, data)
    for batch in loader:
        for inputs in batch.shards:
            team.backward(functional.mse_loss(model(inputs), inputs))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
