"""SparseAdam on sparse gradients."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.EmbeddingBag(20, 6, sparse=True), nn.Linear(6, 3))
    optimizers = [torch.optim.SparseAdam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.1)]
    data = TensorDataset(torch.randint(0, 20, (22, 5)), torch.randint(0, 3, (22,)))
    model, *optimizers, loader = team.prepare(model, *optimizers, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizers


if __name__ == "__main__":
    main()
