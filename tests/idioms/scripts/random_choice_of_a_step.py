"""A loss drawn each step."""

import random

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
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    drawn = []
    for batch in loader:
        drawn.append(random.choice(["sharp", "soft"]))
        for inputs, targets in batch.shards:
            smoothing = 0.0 if drawn[-1] == "sharp" else 0.3
            team.backward(functional.cross_entropy(model(inputs), targets, label_smoothing=smoothing))
        optimizer.step()
        optimizer.zero_grad()
    return model, drawn


if __name__ == "__main__":
    main()
