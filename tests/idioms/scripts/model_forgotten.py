"""A second model with an optimizer, both unprepared."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    head = nn.Linear(3, 3)
    for_head = torch.optim.Adam(head.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(head(model(inputs)), targets))
        optimizer.step()
        optimizer.zero_grad()
        for_head.step()
        for_head.zero_grad()
    return model, head


if __name__ == "__main__":
    main()
