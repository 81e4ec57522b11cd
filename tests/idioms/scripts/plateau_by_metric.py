"""ReduceLROnPlateau by evaluation loss."""

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
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)
    for _ in team.epochs(3):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        with team.evaluate(model, loader) as evaluation:
            for batch in evaluation:
                for inputs, targets in batch.shards:
                    batch.add(loss=functional.cross_entropy(model(inputs), targets))
        schedule.step(evaluation["loss"])
    return model, schedule.get_last_lr(), evaluation["loss"]


if __name__ == "__main__":
    main()
