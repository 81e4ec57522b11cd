"""A variational autoencoder."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.ModuleDict({"encode": nn.Linear(6, 4), "decode": nn.Linear(2, 6)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    losses = []
    for batch in loader:
        for inputs in batch.shards:
            mean, log_variance = model["encode"](inputs).chunk(2, dim=1)
            hidden = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
            restored = functional.mse_loss(model["decode"](hidden), inputs)
            divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1).mean() / 2
            team.backward(restored + min(1.0, team.step / 4) * divergence)
            batch.add(restored=restored, divergence=divergence)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((batch["restored"], batch["divergence"]))
    return model, optimizer, losses


if __name__ == "__main__":
    main()
