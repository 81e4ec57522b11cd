"""A VQ-VAE's codebook."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 3), nn.Linear(3, 6)
        self.register_buffer("codes", torch.randn(5, 3))

    def forward(self, x):
        encoded = self.encode(x)
        chosen = torch.cdist(encoded.detach(), self.codes).argmin(dim=1)
        quantised = self.codes[chosen]
        with torch.no_grad():
            one_hot = functional.one_hot(chosen, 5).float()
            means = one_hot.T @ encoded / one_hot.sum(dim=0).clamp(min=1.0)[:, None]
            used = one_hot.any(dim=0)[:, None]
            self.codes.copy_(torch.where(used, self.codes.lerp(means, 0.1), self.codes))
        return self.decode(encoded + (quantised - encoded).detach()), functional.mse_loss(encoded, quantised)


def main():
    team = lockstep.join()
    model = Codebook()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            restored, commitment = model(inputs)
            team.backward(functional.mse_loss(restored, inputs) + 0.25 * commitment)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
