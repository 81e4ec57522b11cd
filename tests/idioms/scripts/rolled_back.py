"""Rollback when the loss jumps."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    good, last, jumps = None, float("inf"), []
    for _ in team.epochs(3):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            if batch["loss"] > 1.2 * last and good is not None:
                model.load_state_dict(good[0])
                optimizer.load_state_dict(good[1])
                optimizer.zero_grad()
                jumps.append(team.step)
                continue
            good, last = copy.deepcopy((model.state_dict(), optimizer.state_dict())), batch["loss"]
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer, jumps


if __name__ == "__main__":
    main()
