"""A confusion matrix."""

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
    total = torch.zeros(3, 3, dtype=torch.long)
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets))
            pairs = 3 * targets + logits.argmax(dim=1)
            batch.add(confusion=pairs.bincount(minlength=9).view(3, 3), reduction="sum")
        total += batch["confusion"]
        optimizer.step()
        optimizer.zero_grad()
    return model, total


if __name__ == "__main__":
    main()
