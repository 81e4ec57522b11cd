"""An unprepared warm-up."""

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
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rates = []
    for epoch in team.epochs(3):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            if epoch == 0:
                warm_up.step()
            optimizer.zero_grad()
            rates.append(optimizer.param_groups[0]["lr"])
        decay.step()
    return model, rates


if __name__ == "__main__":
    main()
