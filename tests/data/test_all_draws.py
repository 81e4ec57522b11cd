"""Each draw of a script is its own: no two places of a run get the same random numbers. And each
place gets the same ones on every number of processes, with and without loader workers.

A place is where code of the script runs: a sample, a batch that is collated, an index of a sampler,
a shard in each phase and part, the code around shards, passes and epochs, the batches of an
evaluation. One script goes through all of them, and notes what three generators give at each.
"""

import random
from collections import Counter

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import lockstep

pytestmark = pytest.mark.timeout(120)
BATCHES, SIZE, SHARDS = 5, 6, 3
DRAWN, PASSES = {}, Counter()
"""What was drawn, by place, and the passes over each sampler. (Not in the samplers, whose memory
lockstep puts back.)"""


def draw():
    return [torch.rand((), dtype=torch.float64).item(), numpy.random.random(), random.random()]


def note(*place):
    assert place not in DRAWN, f"{place} comes twice"
    DRAWN[place] = draw()


def note_again(*place, drawn=None):
    """The same for a place with one set of numbers: samples that a second phase gets, too, and a
    second evaluation of a loader."""
    drawn = draw() if drawn is None else drawn.tolist()
    assert DRAWN.setdefault(place, drawn) == drawn, f"{place} had other numbers before"


class Samples(Dataset):
    """A sample has what was drawn for it, and for its epoch."""

    of_epoch = (0.0, 0.0, 0.0)

    def __len__(self):
        return BATCHES * SIZE

    def __getitem__(self, index):
        return torch.tensor([draw(), self.of_epoch], dtype=torch.float64)

    def set_epoch(self, epoch):
        self.of_epoch = draw()


class ReadySamples(Samples):
    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return torch.stack([super(ReadySamples, self).__getitem__(0) for _ in range(SIZE)])


class Stream(IterableDataset):
    def __iter__(self):
        begun = draw()
        return (torch.tensor([draw(), begun], dtype=torch.float64) for _ in range(BATCHES * SIZE))


class Ready:
    def __iter__(self):
        begun = draw()
        return (torch.tensor([[draw(), begun] for _ in range(SIZE)], dtype=torch.float64) for _ in range(BATCHES))


class Drawing(Sampler):
    def __init__(self, name, length):
        self.name, self.length = name, length

    def __len__(self):
        return self.length

    def __iter__(self):
        PASSES[self.name] += 1
        for index in range(self.length):
            note("index", self.name, PASSES[self.name], index)
            yield index


def collate(samples):
    return torch.stack(samples), torch.tensor(draw(), dtype=torch.float64)


def make_loader(kind, name, num_workers):
    if kind == "samples":
        sampler = Drawing(name, BATCHES * SIZE)
        return DataLoader(Samples(), SIZE, sampler=sampler, collate_fn=collate, num_workers=num_workers)
    if kind == "ready samples":
        return DataLoader(ReadySamples(), batch_size=None, sampler=Drawing(name, BATCHES), num_workers=num_workers)
    if kind == "stream":
        return DataLoader(Stream(), SIZE, collate_fn=collate, num_workers=num_workers)
    return Ready()


def note_samples(samples, kind, begun, *place):
    place = (kind, *place)
    rows, collated = samples if isinstance(samples, (list, tuple)) else (samples, None)
    for number, (own, common) in enumerate(rows):
        note_again("sample", *place, number, drawn=own)
        if common.any():  # it has the same numbers in the data sets of all loaders, and in all copies
            note_again(*(("set_epoch",) if "samples" in kind else ("begun", kind)), begun, drawn=common)
    if collated is not None:
        note_again("collated", *place, drawn=collated)
    return rows[:, 0].float()


def phase(team, model, number, epoch, kinds, batches):
    parts = Counter()
    for side_by_side in zip(*(batch.shards for batch in batches), strict=False):
        place = (team.step, team.shard, parts[team.shard])
        parts[team.shard] += 1
        for kind, samples in zip(kinds, side_by_side, strict=True):
            rows = note_samples(samples, kind, epoch, *place)
        note("shard", *place, number)
        team.backward(model(rows).mean())
        batches[0].share((parts[team.shard] - 1, team.shard, team.step))
    num_parts = batches[0].num_samples // SIZE
    in_order = [(part, shard, team.step) for part in range(num_parts) for shard in range(team.num_shards)]
    assert batches[0].shared() == in_order


def evaluate(team, model, num_workers, at):
    for number, kind in enumerate(["samples", "stream", "ready", "ready samples"]):
        metric = Metric(number)
        with team.evaluate(model, make_loader(kind, f"evaluated {at} {number}", num_workers), [metric]) as evaluation:
            for batch in evaluation:
                place = ("evaluated", number, batch.number)
                for turn in range(3):
                    for samples in batch.shards:
                        note_samples(samples, kind, ("evaluated", team.step), *place)
                        note_again("inner", *place, turn)
                        batch.update(metric, turn)
                    note_again("outer", *place, turn)
        note("evaluated", at, number)


class Metric:
    def __init__(self, number):
        self.number, self.num_updates = number, 0

    def update(self, turn):
        self.num_updates += 1
        note_again("metric", self.number, self.num_updates)


def train(num_workers):
    """Two loops over epochs, a nested loop, and two passes over two loaders side by side. Steps of
    two parts and two phases."""
    DRAWN.clear(), PASSES.clear()
    team = lockstep.join()
    note("joined")
    model = team.prepare(nn.Linear(3, 1))
    kinds = ["samples", "stream", "ready", "ready samples"]
    loaders = dict(zip(kinds, team.prepare(*(make_loader(kind, kind, num_workers) for kind in kinds)), strict=True))
    note("prepared")

    def one_pass(epoch, *kinds):
        for batches in zip(*map(loaders.get, kinds), strict=True):
            note("step", team.step)
            for number in range(2):
                phase(team, model, number, epoch, kinds, batches)
                note("step", team.step, number)
            if team.step % 2:
                evaluate(team, model, num_workers if team.step == 1 else 0, team.step)
                note("step", team.step, "evaluated")

    for kind in ("samples", "stream"):
        for epoch in team.epochs(2):
            note("epoch", kind, epoch)
            one_pass(epoch, kind)
            note("epoch", kind, epoch, "behind the pass")
        note("epochs", kind)
    for batch in loaders["ready"]:
        for number, _ in enumerate(loaders["samples"]):
            note("nested", team.step, number)
        note("nested", team.step)
        phase(team, model, 0, 0, ["nested"], [batch])
    for number in range(2):
        one_pass(number, "ready", "ready samples")
        note("pass", number)
    return DRAWN


def check_unique(drawn):
    for number in range(3):
        places = {}
        for place, numbers in drawn.items():
            assert places.setdefault(numbers[number], place) == place, "two places with the same numbers"


@pytest.fixture
def expected(standing_crew):
    [drawn] = standing_crew(1, train, 0, shards=SHARDS, accumulate=2)
    return drawn


@pytest.mark.quick
def test_no_two_places_of_a_run_have_the_same_numbers(expected):
    assert len(expected) > 1000
    check_unique(expected)


def test_with_one_shard_neither(standing_crew):
    [drawn] = standing_crew(1, train, 0, shards=1, accumulate=2)
    check_unique(drawn)


@pytest.mark.parametrize(("nproc", "num_workers"), [pytest.param(2, 0, marks=pytest.mark.quick), (3, 2), (1, 2)])
def test_each_place_has_them_on_every_number_of_processes(standing_crew, expected, nproc, num_workers):
    drawn = {}
    for of_rank in standing_crew(nproc, train, num_workers, shards=SHARDS, accumulate=2):
        for place, numbers in of_rank.items():
            assert drawn.setdefault(place, numbers) == numbers, f"{place} differs between ranks"
    assert drawn == expected
