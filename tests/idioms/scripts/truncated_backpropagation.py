"""Truncated backpropagation."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.ModuleDict({"cell": nn.GRUCell(3, 5), "head": nn.Linear(5, 3)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(22, 7, 3)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    hidden = team.per_shard("hidden", None)
    for batch in loader:
        for start in (0, 3):
            for series in batch.shards:
                state = torch.zeros(len(series), 5) if start == 0 else hidden.value
                loss = 0.0
                for time in range(start, start + 3):
                    state = model["cell"](series[:, time], state)
                    loss = loss + functional.mse_loss(model["head"](state), series[:, time + 1])
                team.backward(loss)
                hidden.value = state.detach()
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
