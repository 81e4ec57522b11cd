"""Differential privacy (DP-SGD)."""

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

    def one_loss(weights, x, y):
        return functional.cross_entropy(functional_call(team.unwrap(model), weights, (x[None],)), y[None])

    per_sample = torch.func.vmap(torch.func.grad(one_loss), in_dims=(None, 0, 0))
    for batch in loader:
        for inputs, targets in batch.shards:
            weights = {name: p.detach() for name, p in model.named_parameters()}
            gradients = per_sample(weights, inputs, targets)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            scale = (0.5 / norms).clamp(max=1.0)
            clipped = {name: torch.tensordot(scale, g, 1) for name, g in gradients.items()}
            team.backward(sum((p * clipped[name]).sum() for name, p in model.named_parameters()), reduction="sum")
        for p in model.parameters():
            p.grad = (p.grad + 0.1 * torch.randn_like(p)) / batch.num_samples
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
