"""Weight 0 without valid targets."""

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
    losses = []
    for batch in loader:
        for inputs, targets in batch.shards:
            num_valid = (targets != 2).sum()
            loss = functional.cross_entropy(model(inputs), targets, ignore_index=2)
            team.backward(loss, weight=num_valid)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(batch["loss"])
    return model, losses


if __name__ == "__main__":
    main()
