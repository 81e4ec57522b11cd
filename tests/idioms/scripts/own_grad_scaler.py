"""The script's own GradScaler."""

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
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    model, optimizer, scaler, loader = team.prepare(model, optimizer, scaler, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            team.backward(scaler.scale(functional.cross_entropy(model(inputs), targets)))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model, optimizer, scaler.get_scale()


if __name__ == "__main__":
    main()
