"""Quantization-aware training."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self, x):
        self.low.copy_(torch.lerp(self.low, x.min(), 0.1))
        self.high.copy_(torch.lerp(self.high, x.max(), 0.1))
        scale = ((self.high - self.low) / 15).clamp(min=0.01)
        return self.layer((x / scale).round().clamp(-8, 7) * scale)


def main():
    team = lockstep.join()
    model = Quantised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
