"""`random_split`, Subset, ConcatDataset."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    first, second, test = random_split(data, [20, 15, 5])
    data = ConcatDataset([Subset(first, range(12)), second])
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    with team.evaluate(model, DataLoader(test, 2)) as evaluation:
        for batch in evaluation:
            for inputs, targets in batch.shards:
                batch.add(loss=functional.cross_entropy(model(inputs), targets))
    return model, evaluation["loss"]


if __name__ == "__main__":
    main()
