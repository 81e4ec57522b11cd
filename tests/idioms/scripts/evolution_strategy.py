"""An evolution strategy."""

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
    losses = []
    for batch in loader:
        noises, scores = [], []
        for _ in range(3):
            noise = [0.1 * torch.randn_like(p) for p in model.parameters()]
            for p, n in zip(model.parameters(), noise, strict=True):
                p.data += n
            for inputs, targets in batch.shards:
                with torch.no_grad():
                    batch.add(loss=functional.cross_entropy(model(inputs), targets))
            for p, n in zip(model.parameters(), noise, strict=True):
                p.data -= n
            noises.append(noise)
            scores.append(batch["loss"])
        best = noises[scores.index(min(scores))]
        for p, n in zip(model.parameters(), best, strict=True):
            p.data += 0.5 * n
        losses.append(scores)
    return model, losses


if __name__ == "__main__":
    main()
