"""Class counts (logit adjustment)."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    counts = team.register("counts", torch.ones(3, dtype=torch.long))
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs) + (counts / counts.sum()).log()
            team.backward(functional.cross_entropy(logits, targets))
            batch.add(counts=targets.bincount(minlength=3), reduction="sum")
        counts += batch["counts"]
        optimizer.step()
        optimizer.zero_grad()
    return model, counts


if __name__ == "__main__":
    main()
