"""Averages swapped in for evaluation."""

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
    average = [p.detach().clone() for p in model.parameters()]
    results = []
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            for a, p in zip(average, model.parameters(), strict=True):
                a.lerp_(p.detach(), 0.2)
        kept = [p.detach().clone() for p in model.parameters()]
        for p, a in zip(model.parameters(), average, strict=True):
            p.data.copy_(a)
        with team.evaluate(model, DataLoader(data, 8)) as evaluation:
            for batch in evaluation:
                for inputs, targets in batch.shards:
                    batch.add(loss=functional.cross_entropy(model(inputs), targets))
        for p, old in zip(model.parameters(), kept, strict=True):
            p.data.copy_(old)
        results.append(evaluation["loss"])
    return model, average, results


if __name__ == "__main__":
    main()
