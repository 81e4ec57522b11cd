"""`AveragedModel.update_parameters` inside."""

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, average, optimizer, loader = team.prepare(model, average, optimizer, DataLoader(data, 10))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            average.update_parameters(model)
        optimizer.step()
        optimizer.zero_grad()
    return model, average


if __name__ == "__main__":
    main()
