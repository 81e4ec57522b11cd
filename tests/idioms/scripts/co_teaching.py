"""Co-teaching."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    first, second = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    first, second, *optimizers, loader = team.prepare(first, second, *optimizers, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            losses = [functional.cross_entropy(m(inputs), targets, reduction="none") for m in (first, second)]
            keep = max(1, len(inputs) * 2 // 3)
            easy = [loss.detach().topk(keep, largest=False).indices for loss in losses]
            team.backward(losses[0][easy[1]].mean() + losses[1][easy[0]].mean())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return first, second


if __name__ == "__main__":
    main()
