"""Two loaders, a phase each."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    second = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, first, second = team.prepare(
        model, optimizer, DataLoader(first, 10, shuffle=True), DataLoader(second, 10, shuffle=True)
    )
    losses = []
    for batch, other in zip(first, second, strict=True):
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for inputs, targets in other.shards:
            loss = functional.cross_entropy(model(inputs + 1.0), targets)
            team.backward(loss)
            other.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((batch["loss"], other["loss"]))
    return model, losses


if __name__ == "__main__":
    main()
