"""A counter of samples in a buffer (a warning)."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import lockstep


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.seen += len(x)
        return self.body(x)


def main():
    team = lockstep.join()
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            team.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
