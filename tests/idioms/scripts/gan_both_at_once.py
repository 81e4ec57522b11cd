"""A GAN, one forward pass."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    generator, judge = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, judge)]
    generator, judge, *optimizers, loader = team.prepare(
        generator, judge, *optimizers, DataLoader(torch.randn(22, 6), 10, shuffle=True)
    )
    for batch in loader:
        for real in batch.shards:
            fake = generator(torch.randn(len(real), 4))
            judged = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
            judge.requires_grad_(False)
            fooled = functional.softplus(-judge(fake)).mean()
            judge.requires_grad_(True)
            team.backward(judged)
            team.backward(fooled)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return generator, judge, optimizers


if __name__ == "__main__":
    main()
