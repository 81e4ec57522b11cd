"""Cross-validation."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    scores = []
    for fold in range(2):
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train = Subset(data, [i for i in range(22) if i % 2 != fold])
        test = Subset(data, [i for i in range(22) if i % 2 == fold])
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(train, 9, shuffle=True))
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        with team.evaluate(model, DataLoader(test, 4)) as evaluation:
            for batch in evaluation:
                for inputs, targets in batch.shards:
                    batch.add(loss=functional.cross_entropy(model(inputs), targets))
        scores.append(evaluation["loss"])
    return model, scores


if __name__ == "__main__":
    main()
