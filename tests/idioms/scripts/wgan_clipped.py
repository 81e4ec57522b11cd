"""A WGAN."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    for_generator = torch.optim.RMSprop(generator.parameters(), lr=0.01)
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=0.01)
    generator, critic, for_generator, for_critic, loader = team.prepare(
        generator, critic, for_generator, for_critic, DataLoader(torch.randn(42, 6), 10, shuffle=True)
    )
    for number, batch in enumerate(loader):
        for real in batch.shards:
            fake = generator(torch.randn(len(real), 4)).detach()
            team.backward(critic(fake).mean() - critic(real).mean())
        for_critic.step()
        for_critic.zero_grad()
        for p in critic.parameters():
            p.data.clamp_(-0.2, 0.2)
        if number % 2 == 1:
            for real in batch.shards:
                team.backward(-critic(generator(torch.randn(len(real), 4))).mean())
            for_generator.step()
            for_generator.zero_grad()
            for_critic.zero_grad()
    return generator, critic


if __name__ == "__main__":
    main()
