"""Prompt tuning."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    frozen = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)
    model = nn.ParameterDict({"prompt": nn.Parameter(torch.zeros(4))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            prompt = model["prompt"].expand(len(inputs), 4)
            team.backward(functional.cross_entropy(frozen(torch.cat([prompt, inputs], dim=1)), targets))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
