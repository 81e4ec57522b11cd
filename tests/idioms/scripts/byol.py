"""BYOL."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    online = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Linear(4, 4))
    target = copy.deepcopy(online[:3]).requires_grad_(False)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    online, optimizer, loader = team.prepare(online, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            one, two = inputs + 0.1 * torch.randn_like(inputs), inputs + 0.1 * torch.randn_like(inputs)
            loss = -functional.cosine_similarity(online(one), target(two)).mean()
            team.backward(loss - functional.cosine_similarity(online(two), target(one)).mean())
        optimizer.step()
        optimizer.zero_grad()
        momentum = 1 - 0.1 * (math.cos(math.pi * team.step / 8) + 1) / 2
        for t, p in zip(target.parameters(), team.unwrap(online)[:3].parameters(), strict=True):
            t.data.mul_(momentum).add_(p.data, alpha=1 - momentum)
    return online, target


if __name__ == "__main__":
    main()
