"""`team.log`."""

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
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            loss = functional.cross_entropy(logits, targets)
            team.backward(loss)
            team.log(accuracy=(logits.argmax(dim=1) == targets).float().mean())
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        team.log(loss=batch["loss"], rate=optimizer.param_groups[0]["lr"])
    return model, loader.averages


if __name__ == "__main__":
    main()
