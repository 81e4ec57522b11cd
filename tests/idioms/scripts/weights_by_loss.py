"""Sampler weights that follow losses."""

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
    data = [(x, y, i) for i, (x, y) in enumerate(data)]
    sampler = WeightedRandomSampler(torch.ones(22), num_samples=22)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, sampler=sampler))
    for _ in team.epochs(2):
        for batch in loader:
            found, seen = [], []
            for inputs, targets, indices in batch.shards:
                losses = functional.cross_entropy(model(inputs), targets, reduction="none")
                team.backward(losses.mean())
                found.append(losses)
                seen.append(indices)
            optimizer.step()
            optimizer.zero_grad()
            sampler.weights[team.all_gather_rows(seen)[0]] = team.all_gather_rows(found)[0].double()
    return model, sampler.weights


if __name__ == "__main__":
    main()
