"""A diffusion model."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            times, noise = torch.rand(len(inputs), 1), torch.randn_like(inputs)
            noisy = torch.cos(times) * inputs + torch.sin(times) * noise
            team.backward(functional.mse_loss(model(torch.cat([noisy, times], dim=1)), noise))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
