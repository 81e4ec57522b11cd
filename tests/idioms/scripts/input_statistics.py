"""Running input statistics."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.num_calls += 1
            self.mean += (x.mean(dim=0) - self.mean) / self.num_calls
        return self.layer(x - self.mean)


def main():
    team = lockstep.join()
    model = Normalised()
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
