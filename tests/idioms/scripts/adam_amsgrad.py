"""Adam with AMSGrad."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, weight_decay=0.01)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = team.prepare(*make())
    losses = []
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(batch["loss"])
    return model, optimizer, losses


def plain():
    model, optimizer, loader = make()
    losses = []
    for inputs, targets in loader:
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, optimizer, losses


if __name__ == "__main__":
    main()
