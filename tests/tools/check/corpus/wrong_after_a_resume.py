"""Equal on every number of processes, and not after a resume: something of the script's own is in no checkpoint."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep


def start():
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return (team, *team.prepare(model, optimizer, DataLoader(data, 16, shuffle=True)))


def stage_set_by_an_epoch():
    team, model, optimizer, loader = start()
    size = 2
    for epoch in team.epochs(10):
        if epoch == 5:
            size = 6  # LS201
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.cross_entropy(model(F.pad(x[:, :size], (0, 6 - size))), y))
            optimizer.step()
            optimizer.zero_grad()


def clip_by_an_average_norm():
    team, model, optimizer, loader = start()
    average = None
    for batch in loader:
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9 if average is None else 2 * average)
        average = norm.item() if average is None else 0.9 * average + 0.1 * norm.item()  # LS201
        optimizer.step()
        optimizer.zero_grad()


class Growing(Dataset):
    def __init__(self):
        self.stage = 1

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((6,), index / 64) * (torch.arange(6) < 2 * self.stage), index % 3


def stage_of_the_data_set():
    team, model, optimizer, _ = start()
    data = Growing()
    loader = team.prepare(DataLoader(data, 16))
    for _ in team.epochs(3):
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        data.stage += 1  # LS201


def share_drawn_by_a_generator():
    team, model, optimizer, loader = start()
    rng = np.random.default_rng(0)
    for batch in loader:
        share = rng.beta(0.4, 0.4)  # LS205
        for x, y in batch.shards:
            team.backward(share * F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


def unlabelled_samples_beside():
    team, model, optimizer, loader = start()
    unlabelled = iter(DataLoader(torch.randn(64, 6), 16))
    for batch in loader:
        z = next(unlabelled)  # LS206
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y) + model(z).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def model_made_before_join():
    model = nn.Linear(6, 3)  # LS304
    team = lockstep.join(seed=1)
    team.prepare(model)


def argument_that_join_does_not_have():
    team = lockstep.join(shard=4, seed=1)  # LS305
    team.prepare(nn.Linear(6, 3))
