"""Losses at several depths."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    first, second, head, helper = model
    for batch in loader:
        for inputs, targets in batch.shards:
            hidden = torch.tanh(first(inputs))
            side = functional.cross_entropy(helper(hidden), targets)
            main_loss = functional.cross_entropy(head(torch.tanh(second(hidden))), targets)
            team.backward(main_loss + 0.3 * side)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
