"""`team.best`."""

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
    kept = []
    for epoch in team.epochs(9):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        with team.evaluate(model, DataLoader(data, 5)) as evaluation:
            for inputs, targets in evaluation.shards:
                evaluation.add(accuracy=model(inputs).argmax(dim=1) == targets)
        kept.append((team.best(evaluation["accuracy"]), team.best_metric, team.best_epoch))
        if epoch - team.best_epoch == 2:
            break
    return model, kept


if __name__ == "__main__":
    main()
