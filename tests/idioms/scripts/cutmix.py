"""Cutmix."""

import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 1, 5, 5), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for images, targets in batch.shards:
            top, left = random.randrange(3), random.randrange(3)
            order = torch.randperm(len(images))
            mixed = images.clone()
            mixed[:, :, top : top + 3, left : left + 3] = images[order, :, top : top + 3, left : left + 3]
            logits = model(mixed)
            loss = 16 / 25 * functional.cross_entropy(logits, targets)
            team.backward(loss + 9 / 25 * functional.cross_entropy(logits, targets[order]))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
