"""AdaHessian."""

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
            loss = functional.cross_entropy(model(inputs), targets)
            weights = list(model.parameters())
            slopes = torch.autograd.grad(loss, weights, create_graph=True)
            signs = [torch.randint(0, 2, p.shape) * 2.0 - 1.0 for p in weights]
            team.backward(sum((slope * sign).sum() for slope, sign in zip(slopes, signs, strict=True)))
        curvature = [p.grad.abs() + 0.1 for p in model.parameters()]
        optimizer.zero_grad()
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        for p, size in zip(model.parameters(), curvature, strict=True):
            p.grad /= size
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
