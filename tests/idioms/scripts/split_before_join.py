"""Unseeded `random_split` before `join`."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

import lockstep


def main():
    inputs = torch.arange(240.0).view(40, 6) / 100
    training, _ = random_split(TensorDataset(inputs, torch.arange(40) % 3), [30, 10])
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(training, 10, shuffle=True))
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
