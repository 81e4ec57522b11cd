"""Several losses."""

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
    losses = []
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            main_loss = functional.cross_entropy(logits, targets)
            decay = sum(p.square().sum() for p in model.parameters())
            spread = logits.var() if len(logits) > 1 else logits.sum() * 0.0
            team.backward(main_loss + 0.01 * decay + 0.1 * spread)
            batch.add(main=main_loss, decay=decay, spread=spread)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((batch["main"], batch["decay"], batch["spread"]))
    return model, losses, loader.averages


if __name__ == "__main__":
    main()
