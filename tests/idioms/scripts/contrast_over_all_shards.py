"""Contrast over the global batch."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randn(22, 6))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        found = []
        for _, partners in batch.shards:
            with torch.no_grad():
                found.append(functional.normalize(model(partners), dim=1))
        everyone, mine = team.all_gather_rows(found)
        for (inputs, _), own in zip(batch.shards, mine, strict=True):
            alike = functional.normalize(model(inputs), dim=1) @ everyone.T / 0.2
            team.backward(functional.cross_entropy(alike, torch.arange(own.start, own.stop)))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
