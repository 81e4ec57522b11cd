"""Functions that train, each with at most one fault. (In a file that needs no pytest, which ranks
would import.)"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def train(fault="", result="loss", epochs=2, num_samples=24, **settings):
    team = lockstep.join(**settings)
    print("hello from", team.rank)
    inputs = torch.arange(num_samples * 4.0).reshape(-1, 4) / (num_samples * 4)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(TensorDataset(inputs), 8, shuffle=True))
    losses, num_shards = [], 0
    for _ in team.epochs(epochs):
        for batch in loader:
            if fault == "hang" and team.step == 2 and team.rank == 1:
                time.sleep(1000)
            for (x,) in batch.shards:
                num_shards += 1
                loss = model(x).square().mean()
                if fault == "rank":
                    loss = loss * (1 + team.rank)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(batch["loss"])
            if fault == "update" and team.is_main:
                with torch.no_grad():
                    model[0].weight.add_(0.01)
            if fault in ("raise", f"raise in step {team.step}") and team.rank == 1:
                raise ValueError("boom")
    results = {
        "loss": losses[-1],
        "losses": losses,
        "shards": num_shards,
        "rank": team.rank,
        "model": model,
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
    }
    return results[result]


def never_joins():
    return 1


def takes_no_step():
    lockstep.join()
