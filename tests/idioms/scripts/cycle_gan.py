"""A CycleGAN."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    there, back = nn.Linear(6, 6), nn.Linear(6, 6)
    judge_a, judge_b = nn.Linear(6, 1), nn.Linear(6, 1)
    generators, judges = nn.ModuleList([there, back]), nn.ModuleList([judge_a, judge_b])
    for_generators = torch.optim.Adam(generators.parameters(), lr=0.01)
    for_judges = torch.optim.Adam(judges.parameters(), lr=0.01)
    generators, judges, for_generators, for_judges, loader_a, loader_b = team.prepare(
        generators,
        judges,
        for_generators,
        for_judges,
        DataLoader(torch.randn(22, 6), 10, shuffle=True),
        DataLoader(torch.rand(22, 6), 10, shuffle=True),
    )
    for batch_a, batch_b in zip(loader_a, loader_b, strict=True):
        judges.requires_grad_(False)
        for a, b in zip(batch_a.shards, batch_b.shards, strict=True):
            fake_b, fake_a = there(a), back(b)
            fooled = functional.softplus(-judge_b(fake_b)).mean() + functional.softplus(-judge_a(fake_a)).mean()
            cycled = functional.l1_loss(back(fake_b), a) + functional.l1_loss(there(fake_a), b)
            team.backward(fooled + 10 * cycled)
        for_generators.step()
        for_generators.zero_grad()
        judges.requires_grad_(True)
        for a, b in zip(batch_a.shards, batch_b.shards, strict=True):
            real = functional.softplus(-judge_a(a)).mean() + functional.softplus(-judge_b(b)).mean()
            fake_a, fake_b = back(b).detach(), there(a).detach()
            fake = functional.softplus(judge_a(fake_a)).mean() + functional.softplus(judge_b(fake_b)).mean()
            team.backward(real + fake)
        for_judges.step()
        for_judges.zero_grad()
    return generators, judges


if __name__ == "__main__":
    main()
