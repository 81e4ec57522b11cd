"""EMA in a `copy.deepcopy`."""

import copy

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
    average = copy.deepcopy(model)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.data.lerp_(p.data, 0.2)
    with team.evaluate(average, DataLoader(data, 7)) as evaluation:
        for batch in evaluation:
            for inputs, targets in batch.shards:
                batch.add(loss=functional.cross_entropy(average(inputs), targets))
    return model, average, evaluation["loss"]


if __name__ == "__main__":
    main()
