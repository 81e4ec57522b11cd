"""MAML."""

import torch
from torch import nn
from torch.func import functional_call
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
            weights = dict(model.named_parameters())
            inner = functional.cross_entropy(model(inputs), targets)
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            moved = {name: p - 0.1 * slope for (name, p), slope in zip(weights.items(), slopes, strict=True)}
            outer = functional_call(team.unwrap(model), moved, (inputs + 0.1,))
            team.backward(functional.cross_entropy(outer, targets))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
