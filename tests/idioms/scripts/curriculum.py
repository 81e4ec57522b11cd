"""A curriculum sampler."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler, TensorDataset

import lockstep


class Curriculum(Sampler):
    def __init__(self, difficulty):
        self.order = difficulty.argsort().tolist()
        self.share = 0.5

    def __iter__(self):
        chosen = self.order[: len(self)]
        yield from (chosen[i] for i in torch.randperm(len(chosen)).tolist())

    def __len__(self):
        return int(self.share * len(self.order))


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    sampler = Curriculum(data.tensors[0].norm(dim=1))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, sampler=sampler))
    counts = []
    for epoch in team.epochs(2):
        sampler.share = 0.5 if epoch == 0 else 1.0
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            counts.append(batch.num_samples)
    return model, counts


if __name__ == "__main__":
    main()
