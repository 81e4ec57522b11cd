"""Evaluation every second step."""

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
    found = []
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if team.step % 2 == 0:
            with team.evaluate(model, DataLoader(test, 5)) as evaluation:
                for batch in evaluation:
                    for inputs, targets in batch.shards:
                        logits = model(inputs)
                        batch.add(loss=functional.cross_entropy(logits, targets), right=logits.argmax(dim=1) == targets)
            found.append((evaluation["loss"], evaluation["right"]))
    return model, found


if __name__ == "__main__":
    main()
