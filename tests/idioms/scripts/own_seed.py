"""`torch.manual_seed` every step."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    torch.manual_seed(123)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        torch.manual_seed(team.step)
        noise = 0.1 * torch.randn(6)
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs + noise), targets))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
