"""A prepared loss module with a buffer."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import lockstep


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, outputs):
        loss = (outputs - self.centre - 1.0).square().mean()
        self.centre.lerp_(outputs.detach().mean(dim=0), 0.3)
        return loss


def main():
    team = lockstep.join()
    model, criterion = nn.Linear(6, 3), Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(22, 6), 10, shuffle=True)
    model, criterion, optimizer, loader = team.prepare(model, criterion, optimizer, loader)
    for batch in loader:
        for inputs in batch.shards:
            team.backward(criterion(model(inputs)))
        optimizer.step()
        optimizer.zero_grad()
    return model, criterion


if __name__ == "__main__":
    main()
