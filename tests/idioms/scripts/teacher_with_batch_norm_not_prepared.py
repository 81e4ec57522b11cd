"""An unprepared teacher with BatchNorm in training mode."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    teacher = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 3)).requires_grad_(False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 2, 6), 10, shuffle=True))
    for epoch in team.epochs(2):
        teacher.train(epoch == 0)
        for batch in loader:
            for inputs in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), teacher(inputs).softmax(dim=1)))
            optimizer.step()
            optimizer.zero_grad()
    return model, teacher


if __name__ == "__main__":
    main()
