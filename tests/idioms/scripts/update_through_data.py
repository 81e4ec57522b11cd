"""Weights written through `p.data`."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, loader = team.prepare(model, DataLoader(data, 10, shuffle=True))
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for name, p in model.named_parameters():
            velocity[name].mul_(0.9).add_(p.grad)
            p.data -= 0.1 * velocity[name]
            p.grad = None
    return model, velocity


if __name__ == "__main__":
    main()
