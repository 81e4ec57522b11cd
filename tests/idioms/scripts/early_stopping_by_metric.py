"""Early stopping by accuracy."""

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
    test = TensorDataset(torch.randn(13, 6), torch.randint(0, 3, (13,)))
    best, bad, history = 0.0, 0, []
    for _ in team.epochs(4):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        with team.evaluate(model, DataLoader(test, 5)) as evaluation:
            for batch in evaluation:
                for inputs, targets in batch.shards:
                    batch.add(accuracy=model(inputs).argmax(dim=1) == targets)
        history.append(evaluation["accuracy"])
        best, bad = (history[-1], 0) if history[-1] > best else (best, bad + 1)
        if bad == 1:
            break
    return model, history


if __name__ == "__main__":
    main()
