"""Random batches without a data set."""

import torch
from torch import nn
from torch.nn import functional

import lockstep


class MadeUp:
    def __iter__(self):
        for size in (10, 10, 2):
            x = torch.randn(size, 6)
            yield x, (x.sum(dim=1) > 0).long()


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, MadeUp())
    for _ in team.epochs(2):
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
