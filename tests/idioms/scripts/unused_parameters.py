"""An unused layer."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "never": nn.Linear(6, 3)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(functional.cross_entropy(model["used"](inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
