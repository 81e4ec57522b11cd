"""A learned adversary of no model, by `torch.autograd.grad`."""

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
    shift = torch.zeros(6, requires_grad=True)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs + shift), targets)
            batch.add(
                **{f"slope_{at}": value for at, value in enumerate(torch.autograd.grad(loss, shift, retain_graph=True)[0])}
            )
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            shift += 0.1 * torch.tensor([batch[f"slope_{at}"] for at in range(6)])
    return model, shift


if __name__ == "__main__":
    main()
