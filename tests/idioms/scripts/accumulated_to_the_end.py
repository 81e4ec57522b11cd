"""Accumulation by hand, partial end."""

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
    losses = []
    for number, batch in enumerate(loader, 1):
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        losses.append(batch["loss"])
        if number % 3 == 0 or number == len(loader):
            for p in model.parameters():
                p.grad /= (number - 1) % 3 + 1
            optimizer.step()
            optimizer.zero_grad()
    return model, losses


if __name__ == "__main__":
    main()
