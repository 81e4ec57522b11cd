"""Wrong inside, by way of an object: a name that Python finds at run time, a cache, what others count."""

import functools
import itertools
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import *

import lockstep


def start(loader=None):
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return (team, *team.prepare(model, optimizer, loader or DataLoader(data, 16, shuffle=True)))


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((6,), float(self.rng.normal())), index % 3  # LS109


def names_imported_by_a_star():
    team, *_ = start(DataLoader(Noisy(), 16))
    team.epochs(1)


def rate_by_the_number_of_processes():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    world = dist.get_world_size() if dist.is_initialized() else 1  # LS112
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world)
    for group in optimizer.param_groups:
        group["lr"] *= float(os.environ["WORLD_SIZE"]) ** 0.5  # LS112
    per_rank = 64 // int(os.environ.get("WORLD_SIZE", "1"))  # LS112
    team.prepare(model, optimizer, DataLoader(torch.randn(64, 6), per_rank))
    size = int(os.getenv("WORLD_SIZE", 1))  # LS112
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1 * size, total_steps=10)


def shards_numbered_by_a_count():
    team, model, optimizer, loader = start()
    for batch in loader:
        for (x, y), number in zip(batch.shards, itertools.count()):  # LS107
            team.backward(F.cross_entropy(model(x), y) * (1 + number))
        optimizer.step()
        optimizer.zero_grad()


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    @functools.lru_cache  # noqa: B019
    def mask(self, n):  # LS103
        return torch.rand(n) > 0.5

    def forward(self, x):
        return self.head(x * self.mask(x.shape[1]))


def cache_of_what_was_drawn():
    team, _, _, loader = start()
    model = Masked()
    model, optimizer = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


class Drawn(Dataset):
    def __len__(self):
        return 64

    @functools.cache  # noqa: B019
    def noise(self, index):  # LS109
        return torch.randn(6)

    def __getitem__(self, index):
        return index + self.noise(index), index % 3


def cache_of_a_data_set():
    team, *_ = start(DataLoader(Drawn(), 16))
    team.epochs(1)


def decided_by_the_last_shard():
    team, model, optimizer, loader = start()
    for batch in loader:
        worst, seen, all_low, odd = 0.0, 0, True, False
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x), y)  # LS101
            worst = max(worst, loss.item())  # LS102
            seen += len(x)  # LS102
            all_low = all_low and loss < 1  # LS102
            if loss > 100:
                odd = True  # LS102
            team.backward(loss)
        if team.any(loss > 100) or team.any(worst < 0.1) or team.any(seen > 3) or team.any(all_low) or odd:
            break
        optimizer.step()
        optimizer.zero_grad()


def decided_by_a_list_of_this_process():
    team, model, optimizer, loader = start()
    for batch in loader:
        losses = []
        for x, y in batch.shards:
            losses.append(F.cross_entropy(model(x), y).item())  # LS103
            team.backward(F.cross_entropy(model(x), y))
        if team.any(min(losses) > 10) or team.any(sum(losses) > 3) or team.any(losses[-1] > 9):
            break
        optimizer.step()
        optimizer.zero_grad()


def last_loss_in_what_is_registered():
    team, model, optimizer, loader = start()
    kept = team.register("kept", {"best": 9.0})
    for batch in loader:
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x), y)  # LS101
            team.backward(loss)
        kept["best"] = min(kept["best"], loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if kept["best"] < 0.1:
            break


def schedule_by_the_number_of_processes():
    team, model, optimizer, loader = start()
    count = int(os.environ.get("WORLD_SIZE") or 1)  # LS112
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: count / (1 + step))
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
