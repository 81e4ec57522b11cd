"""L-BFGS."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = team.prepare(*make())
    losses = []
    for batch in loader:

        def closure(batch=batch):
            optimizer.zero_grad()
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            return batch["loss"]

        losses.append(optimizer.step(closure))
    return model, optimizer, losses


def plain():
    model, optimizer, loader = make()
    losses = []
    for inputs, targets in loader:

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss.item()

        losses.append(optimizer.step(closure))
    return model, optimizer, losses


if __name__ == "__main__":
    main()
