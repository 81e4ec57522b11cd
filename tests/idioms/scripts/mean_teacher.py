"""A mean teacher."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            with torch.no_grad():
                wanted = teacher(inputs + 0.1 * torch.randn_like(inputs)).softmax(dim=1)
            logits = model(inputs + 0.1 * torch.randn_like(inputs))
            consistency = functional.mse_loss(logits.softmax(dim=1), wanted)
            team.backward(functional.cross_entropy(logits, targets) + consistency)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for a, p in zip(teacher.parameters(), model.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
    return model, teacher


if __name__ == "__main__":
    main()
