"""Equal on every number of processes, and not after a resume: something of the script's own is in no checkpoint."""

import collections
import random

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


def train_step(team, model, optimizer, batch):
    for x, y in batch.shards:
        loss = F.cross_entropy(model(x), y)
        team.backward(loss)
        batch.add(loss=loss)
    optimizer.step()
    optimizer.zero_grad()
    return batch["loss"]


def validate(team, model):
    with team.evaluate(model, DataLoader(TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), 8)) as evaluation:
        for batch in evaluation:
            for x, y in batch.shards:
                batch.add(loss=F.cross_entropy(model(x), y))
    return evaluation["loss"]


def nano_gpt():
    team, model, optimizer, loader = start()
    best_val_loss = 1e9
    for batch in loader:
        train_step(team, model, optimizer, batch)
        if team.step % 10 == 0:
            val_loss = validate(team, model)
            if val_loss < best_val_loss:
                best_val_loss = val_loss  # LS201
                if team.is_main:
                    torch.save(model.state_dict(), "ckpt.pt")


def noise_on_gradients():
    team, model, optimizer, loader = start()
    generator = torch.Generator().manual_seed(3)
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        for p in model.parameters():
            p.grad += 0.01 * torch.randn(p.shape, generator=generator)  # LS205
        optimizer.step()
        optimizer.zero_grad()


def mixup_share_from_numpy():
    team, model, optimizer, loader = start()
    rng = np.random.default_rng(3)
    for batch in loader:
        share = rng.beta(0.4, 0.4)  # LS205
        for x, y in batch.shards:
            team.backward(share * F.cross_entropy(model(x), y) + (1 - share) * F.cross_entropy(model(x.flip(0)), y.flip(0)))
        optimizer.step()
        optimizer.zero_grad()


def unlabelled_by_next():
    team, model, optimizer, loader = start()
    unlabelled = iter(DataLoader(torch.randn(640, 6), 16))
    for batch in loader:
        more = next(unlabelled)  # LS206
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y) + model(more).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def loss_spikes_skipped():
    team, model, optimizer, loader = start()
    average = None
    for batch in loader:
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            batch.add(loss=loss)
        if average is None or batch["loss"] < 3 * average:
            optimizer.step()
            average = batch["loss"] if average is None else 0.9 * average + 0.1 * batch["loss"]  # LS201
        optimizer.zero_grad()


def clip_by_history():
    team, model, optimizer, loader = start()
    norms = []
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norms.append(norm.item())  # LS203
        torch.nn.utils.clip_grad_norm_(model.parameters(), float(np.percentile(norms, 10)))
        optimizer.step()
        optimizer.zero_grad()


def curriculum_by_loss():
    team, model, optimizer, loader = start()
    level = 1
    for _ in team.epochs(20):
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.cross_entropy(model(x[:, : level * 2].repeat(1, 3)[:, :6]), y))
            optimizer.step()
            optimizer.zero_grad()
        if validate(team, model) < 0.5:
            level += 1  # LS201


def bandit_over_augmentations():
    team, model, optimizer, loader = start()
    scores = {"flip": 1.0, "roll": 1.0}
    for batch in loader:
        name = random.choices(list(scores), list(scores.values()))[0]
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x.flip(1) if name == "flip" else x.roll(1, 1)), y)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        scores[name] = 0.9 * scores[name] + 0.1 * batch["loss"]  # LS203


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


def stop_by_a_window_of_averages():
    team, model, optimizer, loader = start()
    window = collections.deque(maxlen=10)
    for _ in team.epochs(50):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        window.append(loader.averages["loss"])  # LS203
        if np.mean(window) < 0.1:
            break


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
