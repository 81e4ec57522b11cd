"""Scripts that write to what they get of a data set: to the data set's own samples, or to
copies."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import lockstep
from lockstep._data import changed_samples

NUM_SAMPLES, BATCH = 32, 4


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor


class Kept(Dataset):
    """Samples that are kept, of the kind that ``make`` makes."""

    def __init__(self, make):
        self.rows = [make(torch.full((3,), float(number))) for number in range(NUM_SAMPLES)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Table(Dataset):
    """One tensor or array, of which samples are views."""

    def __init__(self, table, convert=lambda row: row):
        self.table, self.convert = table, convert

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return self.convert(self.table[index])


class Stream(IterableDataset):
    def __init__(self, make):
        self.kept = Kept(make)

    def __iter__(self):
        yield from self.kept.rows


class Refilled:
    """Ready batches, all in one buffer."""

    def __init__(self):
        self.buffer = torch.zeros(BATCH, 3)

    def __iter__(self):
        for number in range(8):
            self.buffer.copy_(torch.full((BATCH, 3), float(number)))
            yield (self.buffer,)


class Fresh:
    """Ready batches, made when they are read."""

    def __iter__(self):
        for number in range(8):
            yield (torch.full((BATCH, 3), float(number)),)


def as_is(rows):
    return rows


def loader(data, collate_fn=as_is, **options):
    return DataLoader(data, BATCH, collate_fn=collate_fn, **options)


def each(write):
    """``write`` for each sample of a shard."""

    def of_all(rows):
        for row in rows:
            write(row)

    return of_all


def by_key(write):
    return each(lambda row: write(row["x"]))


def assign(row):
    row["x"] = row["x"] * 2


def assign_attribute(row):
    row.x = row.x * 2


def augmented(rows):
    for row in rows:
        row["x"] = row["x"] + torch.rand(3)
    return torch.stack([row["x"] for row in rows])


def scaled(rows):
    return torch.stack([row["x"].mul_(2) for row in rows])


def extended(rows):
    for row in rows:
        row["length"] = len(row["x"])
    return torch.stack([row["x"] for row in rows])


def converted(rows):
    for row in rows:
        row["x"] = torch.as_tensor(row["x"])
    return torch.stack([row["x"] for row in rows])


def lowered(rows):
    """Writes what it would write again, beside what it draws."""
    for row in rows:
        row["text"] = row["text"].lower()
        row["ids"] = [ord(letter) for letter in row["text"]]
    return torch.tensor([row["ids"] for row in rows]) + torch.rand(1)


def counted(rows):
    for row in rows:
        row["text"] += "a"
    return torch.tensor([len(row["text"]) for row in rows])


def emptied(rows):
    return torch.tensor([len(row.pop("text", "")) for row in rows])


def of_text(x):
    return {"text": "AB", "ids": []}


def copied(rows):
    return augmented([{**row} for row in rows])


def in_a_dict(x):
    return {"x": x}


def nothing(_):
    pass


IMUL, FIRST = (lambda x: x.__imul__(2)), (lambda x: x.__setitem__(0, -1.0))
IN_PLACE = {
    "imul": IMUL,
    "mul_": lambda x: x.mul_(2),
    "out": lambda x: torch.mul(x, 2, out=x),
    "item": FIRST,
    "copy_": lambda x: x.copy_(torch.ones(3)),
    "foreach": lambda x: torch._foreach_mul_([x], 2),
}

FOUND = {
    **{f"{name} of a tensor": (lambda: loader(Kept(torch.clone)), each(write)) for name, write in IN_PLACE.items()},
    **{f"{name} in a dict": (lambda: loader(Kept(in_a_dict)), by_key(write)) for name, write in IN_PLACE.items()},
    "in a tuple": (lambda: loader(Kept(lambda x: (1, x))), each(lambda row: row[1].mul_(2))),
    "in a list of dicts": (lambda: loader(Kept(lambda x: [{"x": x}])), each(lambda row: row[0]["x"].mul_(2))),
    "in an object": (lambda: loader(Kept(lambda x: SimpleNamespace(x=x))), each(lambda row: row.x.mul_(2))),
    "in slots": (lambda: loader(Kept(Slotted)), each(lambda row: row.x.mul_(2))),
    "assigned in a dict": (lambda: loader(Kept(in_a_dict)), each(assign)),
    "assigned attribute": (lambda: loader(Kept(lambda x: SimpleNamespace(x=x))), each(assign_attribute)),
    "assigned slot": (lambda: loader(Kept(Slotted)), each(assign_attribute)),
    "assigned in a list": (lambda: loader(Kept(lambda x: [x, 1])), each(lambda row: row.__setitem__(0, row[0] * 2))),
    "popped": (lambda: loader(Kept(lambda x: {"x": x, "id": 7})), each(lambda row: row.pop("id", None))),
    "appended": (lambda: loader(Kept(lambda x: [x])), each(lambda row: row.append(1))),
    "number in a dict": (lambda: loader(Kept(lambda x: {"seen": 0})), each(lambda row: row.update(seen=row["seen"] + 1))),
    "array": (lambda: loader(Kept(lambda x: x.numpy())), each(IMUL)),
    "array in a dict": (lambda: loader(Kept(lambda x: {"x": x.numpy()})), by_key(FIRST)),
    "tensor over an array": (lambda: loader(Table(numpy.ones((NUM_SAMPLES, 3)), torch.from_numpy)), each(IMUL)),
    "row of an array": (lambda: loader(Table(numpy.ones((NUM_SAMPLES, 3)))), each(IMUL)),
    "row of a tensor": (lambda: loader(Table(torch.ones(NUM_SAMPLES, 3))), each(IMUL)),
    "ready batches": (lambda: [(torch.ones(BATCH, 3), torch.ones(BATCH)) for _ in range(8)], lambda batch: batch[0].mul_(2)),
    "ready dicts": (lambda: [{"x": torch.ones(BATCH, 3)} for _ in range(8)], lambda batch: batch["x"].mul_(2)),
    "ready data set": (
        lambda: DataLoader(Table(torch.ones(8, BATCH, 3)), batch_size=None),
        lambda batch: batch.mul_(2),
    ),
    "stream": (lambda: loader(Stream(in_a_dict)), by_key(IMUL)),
    "assigned in a stream": (lambda: loader(Stream(in_a_dict)), each(assign)),
    "collate_fn assigns": (lambda: loader(Kept(in_a_dict), augmented), nothing),
    "collate_fn writes": (lambda: loader(Kept(in_a_dict), scaled), nothing),
    "collate_fn adds to a text": (lambda: loader(Kept(of_text), counted), nothing),
    "collate_fn takes a text": (lambda: loader(Kept(of_text), emptied), nothing),
    "collate_fn of a stream": (lambda: loader(Stream(in_a_dict), augmented), nothing),
}
"""By name: what is prepared, and what the loop does with the samples of a shard."""

NOT_FOUND = {
    "read only": (lambda: loader(Kept(in_a_dict)), nothing),
    "stacked": (lambda: DataLoader(Kept(torch.clone), BATCH), IMUL),
    "stacked in a dict": (lambda: DataLoader(Kept(in_a_dict), BATCH), lambda batch: batch["x"].mul_(2)),
    "assigned in a stacked dict": (lambda: DataLoader(Kept(in_a_dict), BATCH), assign),
    "tensors": (lambda: DataLoader(TensorDataset(torch.ones(NUM_SAMPLES, 3)), BATCH), lambda batch: batch[0].mul_(2)),
    "stacked stream": (lambda: DataLoader(Stream(in_a_dict), BATCH), assign),
    "cloned": (lambda: loader(Kept(torch.clone)), each(lambda x: x.clone().mul_(2))),
    "copied": (lambda: loader(Kept(in_a_dict), copied), nothing),
    "deep copied": (lambda: loader(Kept(in_a_dict), lambda rows: augmented(copy.deepcopy(rows))), nothing),
    "a key is added": (lambda: loader(Kept(in_a_dict), extended), nothing),
    "converted": (lambda: loader(Kept(lambda x: {"x": x.tolist()}), converted), nothing),
    "collate_fn writes the same again": (lambda: loader(Kept(of_text), lowered), nothing),
    "with gradients": (lambda: loader(Kept(torch.clone)), each(lambda x: x.requires_grad_())),
    "made for each read": (lambda: loader(Table(torch.ones(NUM_SAMPLES, 3), torch.clone)), each(IMUL)),
    "ready, refilled": (Refilled, lambda batch: batch[0].mul_(2)),
    "ready, made for each read": (Fresh, lambda batch: batch[0].mul_(2)),
    "sums of other tensors": (lambda: loader(Kept(torch.clone)), lambda rows: torch.zeros(3).add_(sum(rows))),
    "in workers": (lambda: loader(Kept(in_a_dict), num_workers=1), by_key(IMUL)),
}


def train(prepare, write, run_dir, epochs=1, **settings):
    """What is said of a script."""
    said = []
    changed_samples.say = said.append
    with lockstep.join(run_dir=run_dir, checkpoint_every="off", **settings) as team:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = team.prepare(model, optimizer, prepare())
        for _ in team.epochs(epochs):
            for batch in batches:
                for samples in batch.shards:
                    write(samples)
                    team.backward(model(torch.ones(1, 1)).mean())
                optimizer.step()
                optimizer.zero_grad()
    return said


def train_all(names):
    """What is said of each script, by its name."""
    return {name: train(*{**FOUND, **NOT_FOUND}[name], f"runs/{number}") for number, name in enumerate(names)}


def train_with_workers(workers):
    """A ``collate_fn`` that writes, in loader workers."""
    with lockstep.join(checkpoint_every="off", workers=workers) as team:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = team.prepare(model, optimizer, loader(Kept(in_a_dict), augmented, num_workers=workers))
        for batch in batches:
            for samples in batch.shards:
                team.backward(model(samples).mean())
            optimizer.step()
