"""L-BFGS with line search."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    return model, optimizer, DataLoader(data, 10)


def main():
    team = lockstep.join()
    model, optimizer, loader = team.prepare(*make())
    for batch in loader:

        def closure(batch=batch):
            optimizer.zero_grad()
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            return batch["loss"]

        optimizer.step(closure)
    return model, optimizer


def plain():
    model, optimizer, loader = make()
    for inputs, targets in loader:

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss.item()

        optimizer.step(closure)
    return model, optimizer


if __name__ == "__main__":
    main()
