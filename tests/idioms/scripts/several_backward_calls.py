"""Two backward calls."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = team.prepare(*make())
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets), retain_graph=True)
            team.backward(0.1 * logits.square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return model


def plain():
    model, optimizer, loader = make()
    for inputs, targets in loader:
        logits = model(inputs)
        functional.cross_entropy(logits, targets).backward(retain_graph=True)
        (0.1 * logits.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
