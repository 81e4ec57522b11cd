"""A generator instead of a loader."""

import torch
from torch import nn
from torch.nn import functional

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = ((torch.randn(10, 6), torch.randint(0, 3, (10,))) for _ in range(3))
    model, optimizer, loader = team.prepare(model, optimizer, batches)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
