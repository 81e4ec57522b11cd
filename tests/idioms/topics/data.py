"""Data."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from topics.promises import differs, equal, refused
from topics.shared import dataset, mlp, prepared, sgd, step, train, update


@equal()
def weighted_sampler(team):
    """WeightedRandomSampler."""
    model = mlp()
    data = dataset()
    sampler = WeightedRandomSampler(torch.rand(22), num_samples=22)
    model, optimizer, loader = prepared(team, model, loader=DataLoader(data, 10, sampler=sampler))
    seen = []
    for batch in loader:
        step(team, model, optimizer, batch)
        seen.append(batch["loss"])
    return model, seen


@equal()
def table_filled_outside(team):
    """A table of targets by sample, filled outside."""
    model, optimizer, loader = prepared(
        team, mlp(), data=TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)), torch.arange(22))
    )
    table = team.register("targets", torch.full((22, 3), 1 / 3))
    for _ in team.epochs(2):
        for batch in loader:
            seen, found = [], []
            for inputs, targets, index in batch.shards:
                logits = model(inputs)
                chances = logits.softmax(dim=1)
                regularizer = (1 - (table[index] * chances).sum(dim=1)).log().mean()
                team.backward(functional.cross_entropy(logits, targets) + regularizer)
                seen.append(index)
                found.append(chances)
            rows, _ = team.all_gather_rows(seen)
            table[rows] = 0.7 * table[rows] + 0.3 * team.all_gather_rows(found)[0]
            update(optimizer)
    return model, table


class Halves(Sampler):
    def __iter__(self):
        order = torch.randperm(22).tolist()
        yield from (order[first : first + 9] for first in range(0, 22, 9))

    def __len__(self):
        return 3


@equal()
def batch_sampler(team):
    """A custom batch sampler."""
    model = mlp()
    data = dataset()
    model, optimizer, loader = prepared(team, model, loader=DataLoader(data, batch_sampler=Halves()))
    train(team, model, optimizer, loader)
    return model, len(loader)


@equal()
def sampler_with_own_generator(team):
    """A sampler's own `torch.Generator`."""
    model = mlp()
    data = dataset()
    loader = DataLoader(data, 10, shuffle=True, generator=torch.Generator().manual_seed(3))
    model, optimizer, loader = prepared(team, model, loader=loader)
    for _ in team.epochs(2):
        train(team, model, optimizer, loader)
    return model


class Shuffled(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        waiting = []
        for sample in self.samples:
            waiting.append(sample)
            if len(waiting) > 8:
                yield waiting.pop(random.randrange(len(waiting))) + 0.1 * torch.randn(6)
        while waiting:
            yield waiting.pop(random.randrange(len(waiting)))


@equal()
def stream_shuffled(team):
    """A stream with shuffle buffer."""
    model = nn.Linear(6, 6)
    model, optimizer, loader = prepared(team, model, loader=DataLoader(Shuffled(torch.randn(22, 6)), 10))
    for _ in team.epochs(2):
        for batch in loader:
            for inputs in batch.shards:
                team.backward(functional.mse_loss(model(inputs), inputs))
            update(optimizer)
    return model, team.step


class Noisy(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index] + 0.1 * torch.randn(6) + 0.1 * random.random()


@equal()
def augmented_in_workers(team):
    """Augmentation in loader workers."""
    model = nn.Linear(6, 6)
    data = DataLoader(Noisy(torch.randn(22, 6)), 10, shuffle=True, num_workers=1)
    model, optimizer, loader = prepared(team, model, loader=data)
    for batch in loader:
        for inputs in batch.shards:
            team.backward(functional.mse_loss(model(inputs), inputs))
        update(optimizer)
    return model


def mask(rows):
    words = torch.stack(rows)
    hidden = torch.rand(words.shape) < 0.3
    return words.masked_fill(hidden, 0), words


@equal()
def random_collate(team):
    """Random masking in `collate_fn`."""
    model = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 20))
    loader = DataLoader(torch.randint(1, 20, (22, 5)), 10, shuffle=True, collate_fn=mask)
    model, optimizer, loader = prepared(team, model, loader=loader)
    for batch in loader:
        for masked, words in batch.shards:
            team.backward(functional.cross_entropy(model(masked).flatten(0, 1), words.flatten()))
        update(optimizer)
    return model


@equal()
def dict_batches(team):
    """Batches that are dicts."""
    model, optimizer, loader = prepared(
        team, mlp(), data=[{"x": torch.randn(6), "y": i % 3, "name": f"sample {i}"} for i in range(22)]
    )
    names = []
    for batch in loader:
        mine = []
        for part in batch.shards:
            team.backward(functional.cross_entropy(model(part["x"]), part["y"]))
            mine += part["name"]
        update(optimizer)
        names.append([name for found in team.all_gather_object(mine) for name in found])
    return model, names


@dataclass
class Samples:
    x: torch.Tensor
    y: torch.Tensor


class OwnBatch:
    def __init__(self, rows):
        self.x, self.y = torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    def to(self, device):
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self


@equal()
def own_batch_class(team):
    """A custom batch class."""
    model = mlp()
    data = dataset()
    model, optimizer, loader = prepared(team, model, loader=DataLoader(data, 10, shuffle=True, collate_fn=OwnBatch))
    for batch in loader:
        for part in batch.shards:
            part = part.to(team.device)
            team.backward(functional.cross_entropy(model(part.x), part.y))
        update(optimizer)
    return model


@equal()
def lists_of_sizes(team):
    """Lists of tensors (detection)."""
    model = nn.Linear(6, 2)
    data = [(torch.randn(6), torch.randn(i % 3 + 1, 2)) for i in range(22)]
    loader = DataLoader(data, 10, shuffle=True, collate_fn=lambda rows: tuple(zip(*rows, strict=True)))
    model, optimizer, loader = prepared(team, model, loader=loader)
    for batch in loader:
        for inputs, boxes in batch.shards:
            found = model(torch.stack(inputs))
            team.backward(sum((b - f).square().mean() for f, b in zip(found, boxes, strict=True)) / len(boxes))
        update(optimizer)
    return model


@equal()
def ready_batches(team):
    """A list of ready-made batches."""
    model = mlp()
    batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in (10, 10, 2, 7)]
    model, optimizer, loader = prepared(team, model, loader=batches)
    for _ in team.epochs(2):
        train(team, model, optimizer, loader)
    return model


class MadeUp:
    def __iter__(self):
        for size in (10, 10, 2):
            x = torch.randn(size, 6)
            yield x, (x.sum(dim=1) > 0).long()


@equal()
def made_up_batches(team):
    """Random batches without a dataset."""
    model = mlp()
    model, optimizer, loader = prepared(team, model, loader=MadeUp())
    for _ in team.epochs(2):
        train(team, model, optimizer, loader)
    return model


@refused(code="loader-read-once")
def read_once(team):
    """A generator instead of a loader."""
    model = mlp()
    batches = ((torch.randn(10, 6), torch.randint(0, 3, (10,))) for _ in range(3))
    model, optimizer, loader = prepared(team, model, loader=batches)
    train(team, model, optimizer, loader)


class Ramped(Dataset):
    def __init__(self, team, samples):
        self.team, self.samples = team, samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index] * (1 + 0.1 * self.team.step)


@refused(code="sample-failed", names="UsageError: team.step")
def step_read_in_a_worker(team):
    """Samples that depend on `team.step`, in loader workers."""
    data = Ramped(team, torch.randn(22, 6))
    model, optimizer, loader = prepared(team, nn.Linear(6, 6), loader=DataLoader(data, 10, num_workers=1))
    for batch in loader:
        for inputs in batch.shards:
            team.backward(functional.mse_loss(model(inputs), inputs))
        update(optimizer)


@equal()
def mixup(team):
    """Mixup."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            share, order = np.random.beta(0.4, 0.4), torch.randperm(len(inputs))
            logits = model(share * inputs + (1 - share) * inputs[order])
            loss = share * functional.cross_entropy(logits, targets)
            team.backward(loss + (1 - share) * functional.cross_entropy(logits, targets[order]))
        update(optimizer)
    return model


class Cached(Dataset):
    def __init__(self, samples):
        self.samples, self.cache = samples, {}

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.samples[index] + 0.1 * torch.randn(6)
        return self.cache[index]


@differs("Each process and worker caches what it drew. Fill caches before the loop, on all ranks.", found="LS109")
def cached_augmentation(team):
    """A dataset that caches its augmentation."""
    model, optimizer, loader = prepared(team, nn.Linear(6, 6), data=Cached(torch.randn(22, 6)))
    for _ in team.epochs(2):
        for batch in loader:
            for inputs in batch.shards:
                team.backward(functional.mse_loss(model(inputs), inputs))
            update(optimizer)
    return model


@differs(
    "`torch.Generator()` or `numpy.random.default_rng()`, also in a dataset, continues from shard to shard: "
    "draw from torch, `numpy.random` or `random`, which lockstep reseeds.",
    found="LS105",
)
def own_generator_inside(team):
    """A generator in a variable of the script, drawn inside."""
    model, optimizer, loader = prepared(team)
    generator = np.random.default_rng(0)
    for batch in loader:
        for inputs, targets in batch.shards:
            noise = torch.tensor(generator.normal(size=tuple(inputs.shape)), dtype=torch.float32)
            team.backward(functional.cross_entropy(model(inputs + 0.1 * noise), targets))
        update(optimizer)
    return model


@equal(found="LS202")
def own_generator_left_early(team):
    """Passes left by `break`, of a loader with workers and its own `torch.Generator`."""
    model = mlp()
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(dataset(), 5, shuffle=True, generator=generator, num_workers=2, persistent_workers=True)
    model, optimizer, loader = prepared(team, model, loader=loader)
    for epoch in team.epochs(3):
        for number, batch in enumerate(loader):
            if number == 1 + epoch:
                break
            step(team, model, optimizer, batch)
    return model, generator.get_state()


class GoesOn(Sampler):
    def __init__(self):
        self.position = 0

    def __len__(self):
        return 22

    def __iter__(self):
        for _ in range(22):
            self.position += 5
            yield self.position % 22


@equal(found="LS202")
def sampler_that_goes_on(team):
    """A sampler that continues where it was, in passes left by `break`."""
    sampler = GoesOn()
    model, optimizer, loader = prepared(team, loader=DataLoader(dataset(), 3, sampler=sampler, num_workers=1))
    for _ in team.epochs(3):
        for number, batch in enumerate(loader, 1):
            step(team, model, optimizer, batch)
            if number == 2:
                break
    return model, sampler.position


@equal()
def generators_side_by_side(team):
    """Two loaders side by side, each with a `torch.Generator`."""
    loaders = [
        DataLoader(dataset(), 5, shuffle=True, generator=torch.Generator().manual_seed(seed), num_workers=1, drop_last=True)
        for seed in (3, 4)
    ]
    model = mlp()
    model, optimizer, first, second = team.prepare(model, sgd(model.parameters()), *loaders)
    for _ in team.epochs(2):
        for batch, other in zip(first, second, strict=False):
            for (inputs, targets), (more, labels) in zip(batch.shards, other.shards, strict=True):
                loss = functional.cross_entropy(model(inputs), targets) + functional.cross_entropy(model(more), labels)
                team.backward(loss)
            update(optimizer)
    return model
