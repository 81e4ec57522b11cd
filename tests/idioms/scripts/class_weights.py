"""Class weights from each batch."""

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
        for _, targets in batch.shards:
            batch.add(**{f"share{c}": (targets == c).float().mean() for c in range(3)})
        weights = torch.tensor([1.0 / max(0.1, batch[f"share{c}"]) for c in range(3)])
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets, weight=weights)
            team.backward(loss, weight=weights[targets].sum())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
