"""`model(batch)`."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10))
    for batch in loader:
        team.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
