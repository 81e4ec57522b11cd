"""OneCycleLR."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = make()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=len(loader))
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
    rates = []
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        rates += schedule.get_last_lr()
    return model, optimizer, rates


def plain():
    model, optimizer, loader = make()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=len(loader))
    rates = []
    for inputs, targets in loader:
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        rates += schedule.get_last_lr()
    return model, optimizer, rates


if __name__ == "__main__":
    main()
