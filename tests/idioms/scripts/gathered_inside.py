"""`team.all_gather` inside."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(24, 6), 12))
    for batch in loader:
        for inputs in batch.shards:
            everyone = team.all_gather(model(inputs))
            team.backward(everyone.square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
