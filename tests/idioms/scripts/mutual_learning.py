"""Mutual learning."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    first, second = nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    first, second, *optimizers, loader = team.prepare(first, second, *optimizers, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            one, two = first(inputs), second(inputs)
            loss = functional.cross_entropy(one, targets) + functional.cross_entropy(two, targets)
            loss = loss + functional.cross_entropy(one, two.detach().softmax(dim=1))
            team.backward(loss + functional.cross_entropy(two, one.detach().softmax(dim=1)))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return first, second


if __name__ == "__main__":
    main()
