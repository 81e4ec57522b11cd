"""A GAN, noise drawn inside."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    generator, judge = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    for_judge = torch.optim.Adam(judge.parameters(), lr=0.01, betas=(0.5, 0.999))
    generator, judge, for_generator, for_judge, loader = team.prepare(
        generator, judge, for_generator, for_judge, DataLoader(torch.randn(22, 6), 10, shuffle=True)
    )
    losses = []
    for batch in loader:
        for_judge.zero_grad()
        for real in batch.shards:
            fake = generator(torch.randn(len(real), 4)).detach()
            loss = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake)).mean()
            team.backward(loss)
            batch.add(judge=loss)
        for_judge.step()
        for_generator.zero_grad()
        for real in batch.shards:
            loss = functional.softplus(-judge(generator(torch.randn(len(real), 4)))).mean()
            team.backward(loss)
            batch.add(generator=loss)
        for_generator.step()
        losses.append((batch["judge"], batch["generator"]))
    return generator, judge, for_generator, for_judge, losses


if __name__ == "__main__":
    main()
