"""Mixup, one coefficient a step."""

import numpy as np
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
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        share = np.random.beta(0.4, 0.4)
        for inputs, targets in batch.shards:
            order = torch.randperm(len(inputs))
            logits = model(share * inputs + (1 - share) * inputs[order])
            loss = share * functional.cross_entropy(logits, targets, label_smoothing=0.1)
            team.backward(loss + (1 - share) * functional.cross_entropy(logits, targets[order], label_smoothing=0.1))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
