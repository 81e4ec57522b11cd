"""Activation checkpointing."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    first = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3))
    model = nn.ModuleList([first, nn.Linear(16, 3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            hidden = checkpoint(model[0], inputs, use_reentrant=False)
            team.backward(functional.cross_entropy(model[1](hidden), targets))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
