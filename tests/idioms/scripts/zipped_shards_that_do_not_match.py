"""`zip(a.shards, b.shards)`, unequal numbers."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(12, 6), torch.randint(0, 3, (12,)))
    labelled, unlabelled = DataLoader(data, 10), DataLoader(torch.randn(30, 6), 20)
    model, optimizer, labelled, unlabelled = team.prepare(model, optimizer, labelled, unlabelled)
    for batch, other in zip(labelled, unlabelled, strict=True):
        for (inputs, targets), more in zip(batch.shards, other.shards, strict=True):
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss + 0.1 * model(more).softmax(dim=1).square().sum(dim=1).mean())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
