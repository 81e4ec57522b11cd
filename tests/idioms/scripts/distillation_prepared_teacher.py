"""A prepared teacher with BatchNorm."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    teacher = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    teacher, model, optimizer, loader = team.prepare(teacher, model, optimizer, DataLoader(data, 10, shuffle=True))
    teacher.eval()
    for batch in loader:
        for inputs, _ in batch.shards:
            with torch.no_grad():
                wanted = teacher(inputs).softmax(dim=1)
            team.backward(functional.cross_entropy(model(inputs), wanted))
        optimizer.step()
        optimizer.zero_grad()
    return model, teacher


if __name__ == "__main__":
    main()
