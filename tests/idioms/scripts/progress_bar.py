"""A progress bar."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Bar:
    def __init__(self, batches):
        self.batches, self.text = batches, ""

    def __iter__(self):
        for number, batch in enumerate(self.batches, 1):
            self.number = number
            yield batch

    def show(self, loss):
        self.text = f"\r{'#' * self.number:{len(self.batches)}} {loss:.4f}"
        print(self.text, end="", file=sys.stderr)


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    bar = Bar(loader)
    for batch in bar:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        bar.show(batch["loss"])
    return model, bar.text


if __name__ == "__main__":
    main()
