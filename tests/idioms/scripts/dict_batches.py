"""Batches that are dicts."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [{"x": torch.randn(6), "y": i % 3, "name": f"sample {i}"} for i in range(22)]
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    names = []
    for batch in loader:
        mine = []
        for part in batch.shards:
            team.backward(functional.cross_entropy(model(part["x"]), part["y"]))
            mine += part["name"]
        optimizer.step()
        optimizer.zero_grad()
        names.append([name for found in team.all_gather_object(mine) for name in found])
    return model, names


if __name__ == "__main__":
    main()
