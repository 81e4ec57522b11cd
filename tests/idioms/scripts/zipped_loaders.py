"""Two loaders zipped."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    labelled = DataLoader(data, 10, shuffle=True, drop_last=True)
    unlabelled = DataLoader(torch.randn(50, 6), 20, shuffle=True, drop_last=True)
    model, optimizer, labelled, unlabelled = team.prepare(model, optimizer, labelled, unlabelled)
    for batch, other in zip(labelled, unlabelled, strict=True):
        for (inputs, targets), more in zip(batch.shards, other.shards, strict=True):
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss + 0.1 * model(more).softmax(dim=1).square().sum(dim=1).mean())
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return model, labelled.averages


if __name__ == "__main__":
    main()
