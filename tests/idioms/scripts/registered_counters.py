"""`team.register`."""

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
    counts = team.register("counts", {"samples": 0, "loss": 0.0})
    mean = team.register("mean", torch.zeros(6))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss, **{f"x{i}": inputs[:, i].mean() for i in range(6)})
        optimizer.step()
        optimizer.zero_grad()
        counts["samples"] += batch.num_samples
        counts["loss"] += batch["loss"]
        mean.lerp_(torch.tensor([batch[f"x{i}"] for i in range(6)]), 0.1)
    return model, counts, mean


if __name__ == "__main__":
    main()
