"""Muon with AdamW."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.01)]
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
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
