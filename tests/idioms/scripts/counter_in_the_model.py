"""A counter in a plain attribute of the model."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Cooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.num_calls = nn.Linear(6, 3), 0

    def forward(self, x):
        self.num_calls += 1
        return self.layer(x) * (1 + 1 / self.num_calls)


def main():
    team = lockstep.join()
    model = Cooling()
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
