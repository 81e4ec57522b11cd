"""WGAN-GP."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    generator, critic, for_generator, for_critic, loader = team.prepare(
        generator, critic, for_generator, for_critic, DataLoader(torch.randn(22, 6), 10, shuffle=True)
    )
    for batch in loader:
        for _ in range(3):
            for_critic.zero_grad()
            for real in batch.shards:
                fake = generator(torch.randn(len(real), 4)).detach()
                mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_(True)
                [slope] = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
                penalty = (slope.norm(dim=1) - 1).square().mean()
                team.backward(critic(fake).mean() - critic(real).mean() + 10 * penalty)
            for_critic.step()
        for_generator.zero_grad()
        for real in batch.shards:
            team.backward(-critic(generator(torch.randn(len(real), 4))).mean())
        for_generator.step()
    return generator, critic, for_generator, for_critic


if __name__ == "__main__":
    main()
