"""SummaryWriter on rank 0."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    writer = SummaryWriter(team.run_dir / "board") if team.is_main else None
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        if writer is not None:
            writer.add_scalar("loss", batch["loss"], team.step)
            writer.add_histogram("gradient", model[0].weight.grad, team.step)
        optimizer.step()
        optimizer.zero_grad()
    if writer is not None:
        writer.close()
    return model


if __name__ == "__main__":
    main()
