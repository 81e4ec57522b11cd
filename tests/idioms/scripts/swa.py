"""SWA with `update_bn`."""

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model)
    schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=1)
    data = TensorDataset(torch.randn(22, 2, 6), torch.randint(0, 3, (22,)))
    plain_loader = DataLoader(data, 10)
    model, average, optimizer, schedule, loader = team.prepare(
        model, average, optimizer, schedule, DataLoader(data, 10, shuffle=True)
    )
    for epoch in team.epochs(2):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        if epoch >= 1:
            average.update_parameters(model)
            schedule.step()
    update_bn(plain_loader, average)
    return model, average, schedule


if __name__ == "__main__":
    main()
