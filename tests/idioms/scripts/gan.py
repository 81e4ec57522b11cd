"""A GAN."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, judge)]
    return generator, judge, *optimizers, DataLoader(TensorDataset(torch.randn(22, 6), torch.randn(22, 4)), 10)


def score(judge, samples, wanted):
    logits = judge(samples)
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, wanted))


def main():
    team = lockstep.join()
    generator, judge, for_generator, for_judge, loader = team.prepare(*make())
    for batch in loader:
        for real, noise in batch.shards:
            team.backward(score(judge, real, 1.0) + score(judge, generator(noise).detach(), 0.0))
        for_judge.step()
        for_judge.zero_grad()
        for _, noise in batch.shards:
            team.backward(score(judge, generator(noise), 1.0))
        for_generator.step()
        for_generator.zero_grad()
        for_judge.zero_grad()
    return generator, judge, for_generator, for_judge


def plain():
    generator, judge, for_generator, for_judge, loader = make()
    for real, noise in loader:
        (score(judge, real, 1.0) + score(judge, generator(noise).detach(), 0.0)).backward()
        for_judge.step()
        for_judge.zero_grad()
        score(judge, generator(noise), 1.0).backward()
        for_generator.step()
        for_generator.zero_grad()
        for_judge.zero_grad()
    return generator, judge, for_generator, for_judge


if __name__ == "__main__":
    main()
