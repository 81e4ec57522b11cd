"""Learned loss weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.log_variances = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        return self.layer(x)


def main():
    team = lockstep.join()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(22, 6), torch.randn(22, 5))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            errors = (model(inputs) - targets).square().mean(dim=0)
            team.backward((torch.exp(-model.log_variances) * errors + model.log_variances).sum())
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
