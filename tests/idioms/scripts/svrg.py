"""SVRG."""

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
    anchor = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    anchor = team.prepare(anchor)
    anchor.load_state_dict(model.state_dict())
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(anchor(inputs), targets))
    full = [p.grad / len(loader) for p in anchor.parameters()]
    anchor.zero_grad()
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(anchor(inputs), targets))
        for p, a, mean in zip(model.parameters(), anchor.parameters(), full, strict=True):
            p.grad += mean - a.grad
        optimizer.step()
        optimizer.zero_grad()
        anchor.zero_grad()
    return model, full


if __name__ == "__main__":
    main()
