"""Right on every number of processes and after a resume, however suspicious: nothing is found here."""

import functools
import logging
import math
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import lockstep


def start():
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3, torch.arange(64))
    return (team, *team.prepare(model, optimizer, DataLoader(data, 16, shuffle=True)))


def train_step(team, model, optimizer, batch):
    for x, y, _ in batch.shards:
        loss = F.cross_entropy(model(x), y)
        team.backward(loss)
        batch.add(loss=loss)
    optimizer.step()
    optimizer.zero_grad()
    return batch["loss"]


def labels_that_follow_the_rank():
    team, model, optimizer, loader = start()
    for batch in loader:
        found = []
        for x, _, _ in batch.shards:
            with torch.no_grad():
                found.append(F.normalize(model(x), dim=1))
        parts = team.all_gather_object(found)
        everyone = torch.cat([z for part in parts for z in part])
        offset = sum(len(z) for part in parts[: team.rank] for z in part)
        for x, _, _ in batch.shards:
            logits = F.normalize(model(x), dim=1) @ everyone.T
            team.backward(F.cross_entropy(logits, torch.arange(offset, offset + len(x))))
            offset += len(x)
        optimizer.step()
        optimizer.zero_grad()


class Rotary(nn.Module):
    """Angles cached by length: every process would compute the same."""

    def __init__(self):
        super().__init__()
        self.head, self.length, self.cos = nn.Linear(6, 3), 0, None

    def forward(self, x):
        if self.length < x.shape[1]:
            self.length = x.shape[1]
            self.cos = torch.arange(self.length).cos()
        return self.head(x * self.cos[: x.shape[1]])


def cache_by_length():
    team = lockstep.join(seed=1)
    model = Rotary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(64, 6), 16))
    masks = {}
    for batch in loader:
        for x in batch.shards:
            n = len(x)
            if n not in masks:
                masks[n] = torch.tril(torch.ones(n, n))
            team.backward((masks[n] @ model(x)).square().mean())
        optimizer.step()
        optimizer.zero_grad()


class Decoded(Dataset):
    """Samples decoded once: the same, whoever does it."""

    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 64

    @functools.cache  # noqa: B019
    def read(self, index):
        return torch.full((6,), float(index))

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.read(index)
        return self.cache[index]


class Stream(IterableDataset):
    """Split among the workers of a process, as PyTorch's documentation does it."""

    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        buffer = []
        for i in range(first, 64, stride):
            buffer.append(torch.full((6,), float(i)))
            if len(buffer) == 4:
                yield from buffer
                buffer.clear()


def data_sets_that_remember():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader, more = team.prepare(model, optimizer, DataLoader(Decoded(), 16), DataLoader(Stream(), 16))
    for batch, other in zip(loader, more, strict=True):
        for x, z in zip(batch.shards, other.shards, strict=True):
            team.backward(model(x + z).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def shapes_printed_once():
    team, model, optimizer, loader = start()
    first = True
    for batch in loader:
        for x, y, _ in batch.shards:
            if first:
                print("shapes", x.shape, y.shape)
                first = False
            team.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


def logging_inside():
    team, model, optimizer, loader = start()
    logger = logging.getLogger("train")
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            logger.debug("a shard's loss: %s", loss.item())
            print(f"rank {team.rank}: {loss.item():.3f}")
        optimizer.step()
        optimizer.zero_grad()


def timers():
    team, model, optimizer, loader = start()
    spent = forward_s = 0.0
    t0 = time.perf_counter()
    for batch in loader:
        for x, y, _ in batch.shards:
            begin = time.perf_counter()
            out = model(x)
            forward_s += time.perf_counter() - begin
            team.backward(F.cross_entropy(out, y))
        optimizer.step()
        optimizer.zero_grad()
        t1 = time.perf_counter()
        spent += t1 - t0
        t0 = t1
        print(f"{forward_s:.3f} s forward, {batch.num_samples / spent:.0f} samples/s")


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.saved_log_probs, self.rewards = nn.Linear(6, 3), [], []

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.layer(x))


def policy_that_saves_and_clears():
    team = lockstep.join(seed=1)
    policy = Actor()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    policy, optimizer, loader = team.prepare(policy, optimizer, DataLoader(torch.randn(64, 6), 16))
    for batch in loader:
        for x in batch.shards:
            for state in x:
                choice = policy(state)
                action = choice.sample()
                policy.saved_log_probs.append(choice.log_prob(action))
                policy.rewards.append(float(action == 0))
            returns = torch.tensor(policy.rewards)
            losses = [-p * r for p, r in zip(policy.saved_log_probs, returns - returns.mean(), strict=True)]
            team.backward(torch.stack(losses).mean())
            del policy.saved_log_probs[:]
            del policy.rewards[:]
        optimizer.step()
        optimizer.zero_grad()


def best_registered():
    team, model, optimizer, loader = start()
    kept = team.register("kept", {"best": math.inf, "bad": 0})
    for _ in team.epochs(20):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        loss = loader.averages["loss"]
        if loss < kept["best"]:
            kept.update(best=loss, bad=0)
        else:
            kept["bad"] += 1
        if kept["bad"] >= 3:
            break


def everything_bound_anew():
    team, model, optimizer, loader = start()
    losses = []
    best = None
    for batch in loader:
        for x, y, _ in batch.shards:
            losses = [F.cross_entropy(model(x), y), model(x).square().mean()]
            best = min(losses, key=lambda loss: loss.item())
            total = 0.0
            for loss in losses:
                total = total + loss
            n = 0
            for row in x:
                n += int(row.sum() > 0)
            team.backward(total + best + 0.0 * n)
        optimizer.step()
        optimizer.zero_grad()


def names_used_again_outside():
    team, model, optimizer, loader = start()
    test = DataLoader(TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), 8)
    for _ in team.epochs(3):
        for batch in loader:
            for x, y, _ in batch.shards:
                loss = F.cross_entropy(model(x), y)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            loss = batch["loss"]
            team.log(loss=loss)
        correct = 0
        with torch.no_grad():
            for x, y in test:
                correct += (model(x).argmax(1) == y).sum().item()
        team.print(correct / 40)


def evaluation_that_draws():
    team, model, _, _ = start()
    shown = []
    with team.evaluate(model, DataLoader(torch.randn(40, 6), 8)) as evaluation:
        for batch in evaluation:
            mine = []
            for x in batch.shards:
                mine.append(model(x))
                batch.add(norm=mine[-1].norm(dim=1))
            shown += team.all_gather_object(mine)
    team.print(len(shown), evaluation["norm"])


def detection_lists():
    team, model, optimizer, loader = start()
    for batch in loader:
        for images, labels, _ in batch.shards:
            images = [image.to(team.device) for image in images]
            targets = [{"label": label.to(team.device)} for label in labels]
            losses = {}
            for image, target in zip(images, targets, strict=True):
                for name, value in {"cls": F.cross_entropy(model(image), target["label"])}.items():
                    losses[name] = losses.get(name, 0.0) + value
            team.backward(sum(losses.values()) / len(images))
        optimizer.step()
        optimizer.zero_grad()


def fixed_noise_drawn_on_rank_0():
    team, model, optimizer, loader = start()
    fixed_noise = torch.randn(8, 6)
    pictures = []
    for _ in team.epochs(3):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        if team.is_main:
            with torch.no_grad():
                pictures.append(model(fixed_noise).cpu())
            torch.save(pictures, "pictures.pt")


def losses_by_name_in_a_dict_of_the_step():
    team, model, optimizer, loader = start()
    for batch in loader:
        losses, parts = {}, {}
        for x, y, _ in batch.shards:
            out = model(x)
            losses["ce"] = F.cross_entropy(out, y)
            losses["l2"] = 0.01 * out.square().mean()
            parts.update({"a": out.mean(), "b": out.std()})
            team.backward(sum(losses.values()) + 0.0 * sum(parts.values()))
        optimizer.step()
        optimizer.zero_grad()


def buffer_overwritten_by_each_shard():
    team, model, optimizer, loader = start()
    one_hot, copied = torch.zeros(16, 3), torch.zeros(4, 6)
    for batch in loader:
        for x, y, _ in batch.shards:
            one_hot.zero_().scatter_(1, y[:, None], 1.0)
            copied.copy_(x[:4])
            team.backward((model(x) * one_hot[: len(x)]).mean() + model(copied).mean())
        optimizer.step()
        optimizer.zero_grad()


def stop_flag():
    team, model, optimizer, loader = start()
    stop = False
    for _ in team.epochs(10):
        for batch in loader:
            if train_step(team, model, optimizer, batch) < 0.01:
                stop = True
                break
        if stop:
            break


def dict_of_what_is_saved():
    team, model, optimizer, loader = start()
    saved = {"name": "linear"}
    for epoch in team.epochs(3):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        saved.update(model=model.state_dict(), epoch=epoch)
        if team.is_main:
            torch.save(saved, "last.pt")
