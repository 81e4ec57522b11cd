"""A data set that caches its augmentation."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import lockstep


class Cached(Dataset):
    def __init__(self, samples):
        self.samples, self.cache = samples, {}

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.samples[index] + 0.1 * torch.randn(6)
        return self.cache[index]


def main():
    team = lockstep.join()
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Cached(torch.randn(22, 6)), 10, shuffle=True))
    for _ in team.epochs(2):
        for batch in loader:
            for inputs in batch.shards:
                team.backward(functional.mse_loss(model(inputs), inputs))
            optimizer.step()
            optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
