"""GradNorm."""

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
    weights = nn.Parameter(torch.ones(2))
    for_weights = torch.optim.SGD([weights], lr=0.05)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            outputs = model(inputs)
            losses = torch.stack([functional.cross_entropy(outputs, targets), outputs.square().mean()])
            slopes = [torch.autograd.grad(loss, model[2].weight, retain_graph=True)[0].norm() for loss in losses]
            team.backward(weights[0] * losses[0] + weights[1] * losses[1])
            batch.add(first=losses[0], second=losses[1], slope_of_first=slopes[0], slope_of_second=slopes[1])
        optimizer.step()
        optimizer.zero_grad()
        norms = weights * torch.tensor([batch["slope_of_first"], batch["slope_of_second"]])
        weights.grad = torch.autograd.grad((norms - norms.mean().detach()).abs().sum(), weights)[0]
        for_weights.step()
        for_weights.zero_grad()
    return model, weights


if __name__ == "__main__":
    main()
