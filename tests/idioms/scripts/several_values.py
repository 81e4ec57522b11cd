"""Values with weights of their own."""

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
    rows = []
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets))
            right = logits.argmax(dim=1) == targets
            for label in range(3):
                mine = targets == label
                batch.add(**{f"recall{label}": right[mine].float().mean()}, weight=mine.sum())
        optimizer.step()
        optimizer.zero_grad()
        for inputs, targets in batch.shards:
            with torch.no_grad():
                batch.add(after=functional.cross_entropy(model(inputs), targets))
        rows.append([batch[f"recall{label}"] for label in range(3)] + [batch["after"]])
    return model, rows, loader.averages


if __name__ == "__main__":
    main()
