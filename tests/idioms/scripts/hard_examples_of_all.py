"""Hard example mining, global."""

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
    for batch in loader:
        mine = []
        for inputs, targets in batch.shards:
            with torch.no_grad():
                mine.append(functional.cross_entropy(model(inputs), targets, reduction="none"))
        limit = team.all_gather_rows(mine)[0].median()
        for inputs, targets in batch.shards:
            losses = functional.cross_entropy(model(inputs), targets, reduction="none")
            hard = losses >= limit
            team.backward((losses * hard).sum() / hard.sum().clamp(min=1), weight=hard.sum())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
