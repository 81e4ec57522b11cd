"""Hidden state in `team.per_shard`."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.ModuleDict({"cell": nn.GRUCell(3, 5), "head": nn.Linear(5, 3)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(38, 4, 3)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 12))
    hidden = team.per_shard("hidden", torch.zeros(5))
    for batch in loader:
        for series in batch.shards:
            state, loss = hidden.value.expand(len(series), 5), 0.0
            for time in range(3):
                state = model["cell"](series[:, time], state)
                loss = loss + functional.mse_loss(model["head"](state), series[:, time + 1])
            team.backward(loss)
            hidden.value = state.detach().mean(dim=0)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
