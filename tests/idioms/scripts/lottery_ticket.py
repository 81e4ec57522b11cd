"""A lottery ticket."""

import copy

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
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    start = copy.deepcopy(model.state_dict())
    mask = torch.ones_like(model[0].weight)
    for epoch in team.epochs(2):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            model[0].weight.data *= mask
        if epoch == 0:
            mask = (model[0].weight.abs() > model[0].weight.abs().median()).float()
            model.load_state_dict(start)
            model[0].weight.data *= mask
    return model, mask


if __name__ == "__main__":
    main()
