"""SimCLR: contrast within a shard."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            views = torch.cat([inputs + 0.1 * torch.randn_like(inputs) for _ in range(2)])
            found = functional.normalize(model(views), dim=1)
            alike = found @ found.T / 0.5 - 1e9 * torch.eye(len(found))
            team.backward(functional.cross_entropy(alike, torch.arange(len(found)).roll(len(inputs))))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
