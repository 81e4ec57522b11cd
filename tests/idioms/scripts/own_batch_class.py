"""A custom batch class."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Samples:
    def __init__(self, rows):
        self.x, self.y = torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    def to(self, device):
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True, collate_fn=Samples))
    for batch in loader:
        for part in batch.shards:
            part = part.to(team.device)
            team.backward(functional.cross_entropy(model(part.x), part.y))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
