"""Right on every number of processes and after a resume, however suspicious: nothing is found here."""

import collections
import copy
import functools
import json
import logging
import math
import random
import time
from pathlib import Path

import numpy as np
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


def history_that_is_only_plotted():
    team, model, optimizer, loader = start()
    history = {"loss": [], "val": []}
    for _ in team.epochs(3):
        for batch in loader:
            history["loss"].append(train_step(team, model, optimizer, batch))
    if team.is_main:
        Path("history.json").write_text(json.dumps(history))


def running_mean_of_an_epoch():
    team, model, optimizer, loader = start()
    for epoch in team.epochs(3):
        running, begin = 0.0, time.time()
        for batch in loader:
            running += train_step(team, model, optimizer, batch)
        team.print(f"epoch {epoch}: {running / len(loader):.3f} in {time.time() - begin:.1f} s")


def confusion_reduced():
    team, model, optimizer, loader = start()
    confusion = torch.zeros(3, 3, dtype=torch.long)
    for batch in loader:
        mine = torch.zeros_like(confusion)
        for x, y, _ in batch.shards:
            out = model(x)
            team.backward(F.cross_entropy(out, y))
            for t, p in zip(y, out.argmax(1), strict=True):
                mine[t, p] += 1
        optimizer.step()
        optimizer.zero_grad()
        confusion += team.all_reduce(mine)
    team.print(confusion)


def queue_registered_and_filled_outside():
    team, model, optimizer, loader = start()
    queue = collections.deque(maxlen=64)
    team.register("queue", queue)
    for batch in loader:
        keys = []
        for x, y, _ in batch.shards:
            z = F.normalize(model(x), dim=1)
            negatives = torch.stack(list(queue)) if queue else z.detach()
            team.backward(F.cross_entropy(z, y) + (z @ negatives.T).exp().mean())
            keys.append(z.detach())
        optimizer.step()
        optimizer.zero_grad()
        for part in team.all_gather_object(keys):
            for z in part:
                queue.extend(z)


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


def progress_bar_with_postfix():
    from tqdm import tqdm

    team, model, optimizer, loader = start()
    for epoch in team.epochs(3):
        bar = tqdm(loader, desc=f"epoch {epoch}", disable=not team.is_main)
        for batch in bar:
            loss = train_step(team, model, optimizer, batch)
            bar.set_postfix(loss=f"{loss:.3f}")


def logging_inside():
    team, model, optimizer, loader = start()
    logger = logging.getLogger("train")
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            logger.debug("a shard's loss: %s", loss.item())
            team.log(loss=loss)
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


def best_kept_in_the_state():
    team, model, optimizer, loader = start()
    state = team.state(best=math.inf, bad=0)
    for _ in team.epochs(20):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        loss = loader.averages["loss"]
        if loss < state.best:
            state.best, state.bad = loss, 0
        else:
            state.bad += 1
        if state.bad >= 3:
            break


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


def hidden_state_per_shard():
    team = lockstep.join(seed=1)
    model = nn.GRUCell(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(64, 6), 16))
    hidden = team.per_shard("hidden", torch.zeros(6))
    seen = team.per_shard("seen", {"samples": 0})
    for batch in loader:
        for x in batch.shards:
            out = model(x, hidden.value.expand(len(x), 6))
            team.backward(out.square().mean() / (1 + seen.value["samples"]))
            hidden.value = out.detach().mean(0)
            seen.value["samples"] += len(x)
        optimizer.step()
        optimizer.zero_grad()


def sharpness_aware():
    team, model, optimizer, loader = start()
    for batch in loader:
        for phase in range(2):
            for x, y, _ in batch.shards:
                team.backward(F.cross_entropy(model(x), y))
            if phase == 0:
                moves = [0.05 * p.grad for p in model.parameters()]
                with torch.no_grad():
                    for p, move in zip(model.parameters(), moves, strict=True):
                        p.add_(move)
                optimizer.zero_grad()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


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


class Opened(Dataset):
    """A file that is opened in each worker."""

    def __init__(self, path):
        self.path, self.file, self.epoch = path, None, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.file is None:
            self.file = np.load(self.path)
        x = torch.from_numpy(self.file[index])
        return x.flip(0) if random.random() < 0.5 else x + self.epoch


def data_set_that_opens_a_file():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Opened("data.npy")
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 16))
    for epoch in team.epochs(3):
        data.set_epoch(epoch)
        for batch in loader:
            for x in batch.shards:
                team.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


class Adversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.label, self.domain, self.strength = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 2), 0.0

    def forward(self, x):
        z = self.features(x)
        return self.label(z), self.domain(Reversal.apply(z, self.strength))


def domain_adversarial():
    team = lockstep.join(seed=1)
    model = Adversarial()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 16))
    for epoch in team.epochs(3):
        for batch in loader:
            progress = (epoch + team.step / len(loader)) / 3
            model.strength = 2 / (1 + math.exp(-10 * progress)) - 1
            for x, y in batch.shards:
                label, domain = model(x)
                team.backward(F.cross_entropy(label, y) + F.cross_entropy(domain, y % 2))
            optimizer.step()
            optimizer.zero_grad()


def summary_of_each_epoch():
    team, model, optimizer, loader = start()
    rows = []
    for epoch in team.epochs(3):
        losses = []
        for batch in loader:
            losses.append(train_step(team, model, optimizer, batch))
        rows.append((epoch, sum(losses) / len(losses), max(losses)))
        team.print("\n".join(f"{e}: {mean:.3f}, at most {most:.3f}" for e, mean, most in rows))
    return rows


def weights_that_are_only_compared():
    team, model, optimizer, loader = start()
    norms = {}
    for _ in team.epochs(3):
        before = [p.detach().clone() for p in model.parameters()]
        for batch in loader:
            train_step(team, model, optimizer, batch)
        for name, p in model.named_parameters():
            norms[name] = p.norm().item()
        team.print(norms, sum((b - p).norm() for b, p in zip(before, model.parameters(), strict=True)))


def words_numbered_in_order():
    team, model, optimizer, _ = start()
    text = ["the", "cat", "sat", "on", "the", "mat"]
    number = {word: i for i, (word, _) in enumerate(collections.Counter(text).most_common())}
    lengths = {word: len(word) for word in set(text)}
    if len(set(text)) < 3:
        raise ValueError(list(set(text)))
    rows = [torch.full((6,), float(number[word] * lengths[word])) for word in text]
    loader = team.prepare(DataLoader(rows, 3))
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def pieces(x, y):
    for begin in range(0, len(x), 2):
        yield x[begin : begin + 2], y[begin : begin + 2]


def sum_of_pieces_of_one_shard():
    team, model, optimizer, loader = start()
    for batch in loader:
        for x, y, _ in batch.shards:
            team.backward(sum(F.cross_entropy(model(a), b, reduction="sum") for a, b in pieces(x, y)) / len(x))
        optimizer.step()
        optimizer.zero_grad()


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.is_ready = nn.Linear(6, 3), False

    def forward(self, x):
        if not self.is_ready:
            self.angles = torch.arange(6, device=x.device).float()
            self.is_ready = True
        return self.layer(x + self.angles)


def constants_made_by_the_first_call():
    team, _, _, loader = start()
    model = Positions()
    model, optimizer = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in loader:
        device = next(iter(model.parameters())).device
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x.to(device)), y))
        optimizer.step()
        optimizer.zero_grad()


def dict_of_what_is_saved():
    team, model, optimizer, loader = start()
    saved = {"name": "linear"}
    for epoch in team.epochs(3):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        saved.update(model=model.state_dict(), epoch=epoch)
        if team.is_main:
            torch.save(saved, "last.pt")


def copy_of_the_weights_each_step():
    team, model, optimizer, loader = start()
    for batch in loader:
        fast = copy.deepcopy(team.unwrap(model))
        with torch.no_grad():
            for p in fast.parameters():
                p.mul_(0.99)
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x), y) + F.mse_loss(model(x), fast(x).detach()))
        optimizer.step()
        optimizer.zero_grad()
