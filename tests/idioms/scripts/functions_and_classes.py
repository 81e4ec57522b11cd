"""A Trainer class."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Trainer:
    def __init__(self, team, model, optimizer, loader, callbacks=()):
        self.team, self.model, self.optimizer, self.loader, self.callbacks = team, model, optimizer, loader, callbacks

    def train_shard(self, batch, inputs, targets):
        loss = functional.cross_entropy(self.model(inputs), targets)
        self.team.backward(loss)
        batch.add(loss=loss)

    def train_epoch(self):
        for batch in self.loader:
            for inputs, targets in batch.shards:
                self.train_shard(batch, inputs, targets)
            for callback in self.callbacks:
                callback(self, batch)
            self.optimizer.step()
            self.optimizer.zero_grad()


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    losses = []
    callbacks = [
        lambda trainer, batch: nn.utils.clip_grad_norm_(trainer.model.parameters(), 0.5),
        lambda trainer, batch: losses.append(batch["loss"]),
    ]
    trainer = Trainer(team, model, optimizer, loader, callbacks)
    for _ in team.epochs(2):
        trainer.train_epoch()
    return model, losses


if __name__ == "__main__":
    main()
