"""WeightedRandomSampler."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    sampler = WeightedRandomSampler(torch.rand(22), num_samples=22)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, sampler=sampler))
    seen = []
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(batch["loss"])
    return model, seen


if __name__ == "__main__":
    main()
