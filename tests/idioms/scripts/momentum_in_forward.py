"""Weights moved in `forward` (`p.data = ...`)."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Momentum(nn.Module):
    """MoCo's encoders."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(6, 3), nn.Linear(6, 3).requires_grad_(False)

    def forward(self, inputs):
        for query, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
            key.data = 0.9 * key.data + 0.1 * query.data
        return self.query(inputs) + self.key(inputs)


def main():
    team = lockstep.join()
    model = Momentum()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
