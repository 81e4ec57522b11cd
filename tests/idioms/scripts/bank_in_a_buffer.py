"""A memory bank in a buffer, written in the forward pass (a warning)."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Banked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.register_buffer("bank", functional.normalize(torch.randn(22, 4), dim=1))

    def forward(self, x, index):
        found = functional.normalize(self.body(x), dim=1)
        logits = found @ self.bank.clone().T / 0.2
        self.bank[index] = found.detach()
        return logits


def main():
    team = lockstep.join()
    model = Banked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.arange(22))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, index in batch.shards:
            team.backward(functional.cross_entropy(model(inputs, index), index))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
