"""A driver without a team, worlds of many ranks in one process, and data that shows what was drawn
for it."""

import itertools
import random
from collections import deque
from types import SimpleNamespace

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset

from lockstep._data.assignment import ShardAssignment
from lockstep._data.batch import Shards, own_micro_batches
from lockstep._data.loader import PreparedLoader
from lockstep._data.sources import choose_source
from lockstep._data.streams import Purpose, reseed

CPU = torch.device("cpu")


class FakeDriver:
    """Moves the steps as a loop does, without anything to synchronise. Notes what it is told."""

    def __init__(self, seed=0):
        self.seed = seed
        self.step = 0
        self.micro = None
        self.micro_batches = own_micro_batches
        self.phases = self.phase = self
        self.told = []
        self.compared = []
        self._leader = None
        self._phase = -1
        self._batch = None

    next_is_done = False

    def skips(self):
        return False

    def enter(self, loader):
        if self._leader is loader:
            self.leave(loader, exhausted=False, failed=False)
        if self._leader is not None:
            return False
        self._leader = loader
        self.told.append("enter")
        return True

    @property
    def same_data(self):
        return SimpleNamespace(compare=lambda found: None, note=self.compared.append)

    def begin_step(self, plan):
        self.step, self._phase = plan.number, -1
        self.told.append(("step", plan.number, plan.num_samples))
        self.resume_stream()

    def is_in_pass(self):
        return self._leader is not None

    def begin_following_step(self, loader):
        pass

    def end_following_pass(self, loader):
        pass

    def end_step(self):
        self.told.append(("step over", self.step))
        return self._phase >= 0

    def open(self, batch, upload):
        return Shards(batch, self, upload)

    def begin_phase(self, batch):
        if self._batch is None:
            self._batch = batch
            self._phase += 1
            self.told.append(("phase", self._phase))
        return self._batch

    def begin_shard(self, micro, data):
        self.micro = micro
        self.told.append(("shard", micro.shard))
        self.resume_stream()

    def received(self, micro, data):
        assert (micro.shard, micro.part) == (self.micro.shard, self.micro.part)

    def end_shard(self):
        assert self.micro is not None
        self.micro = None

    def end_phase(self):
        assert self.micro is None
        self._batch = None
        self.told.append(("phase over", self._phase))
        self.resume_stream()

    def add(self, weight, values, reduction=None):
        self.told.append((weight, values))

    def check_outside(self, what):
        assert self._batch is None, what

    def resume_stream(self):
        inside = () if self.micro is None else (self.micro.shard, self.micro.part)
        reseed(self.seed, Purpose.TRAIN, self.step, self._phase + 1, *inside)

    def leave(self, loader, *, exhausted, failed):
        if self._leader is loader:
            self._leader = self._batch = self.micro = None
            self.told.append(("leave", "exhausted" if exhausted else "failed" if failed else "left"))


def assignment(rank=0, world_size=1, num_shards=1, seed=0, loader=1):
    return ShardAssignment(rank=rank, world_size=world_size, num_shards=num_shards, seed=seed, loader=loader)


def prepared(batches, rank=0, world_size=1, num_shards=1, driver=None, **place):
    place = assignment(rank, world_size, num_shards, **place)
    return PreparedLoader(batches, place, driver or FakeDriver(place.seed), CPU)


def run_ahead(pool, requests):
    """What workers do, in this process: the next requests are drawn before a batch is given."""
    waiting = deque(itertools.islice(requests, 4))
    while waiting:
        request = waiting.popleft()
        waiting.extend(itertools.islice(requests, 1))
        yield pool._fetcher[request]


def deal_all(make, world_size, num_shards, epochs=1, **place):
    """``{(step, shard): batch}`` of all ranks of a simulated world, and how many steps each epoch
    had.

    ``make()`` makes the user's loader, anew for each rank as each process does.
    """
    seen, steps = {}, []
    for rank in range(world_size):
        source = choose_source(make(), assignment(rank, world_size, num_shards, **place))
        counted, first = [], 1
        for epoch in range(epochs):
            last = first - 1
            for plan, data in source.steps(first, epoch):
                assert plan.number == last + 1, "a step was skipped"
                last = plan.number
                for micro, batch in zip(plan.micro_batches, data, strict=True):
                    assert (last, micro.shard) not in seen, "two ranks had the same shard"
                    seen[last, micro.shard] = batch
            counted.append(last - first + 1)
            first = last + 1
        steps.append(counted)
    assert all(counted == steps[0] for counted in steps), "the ranks counted different steps"
    return seen, steps[0]


def epoch_of(seen, first_step, num_steps):
    """The batches of some steps, in shard order."""
    return [batch for (step, _), batch in sorted(seen.items()) if first_step <= step < first_step + num_steps]


def same(one, other):
    """Whether two batches are equal in structure and to the bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return isinstance(other, numpy.ndarray) and numpy.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Numbers(Dataset):
    """Sample i is the number i."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return int(index)


def draw():
    """A number from each generator that user code draws from."""
    return [float(torch.rand(())), float(numpy.random.random()), random.random()]


class Noisy(Numbers):
    """Sample i is i, with noise."""

    def __getitem__(self, index):
        return torch.tensor([float(super().__getitem__(index)), *draw()], dtype=torch.float64)


def noisy_collate(samples):
    return torch.stack(samples), torch.tensor(draw(), dtype=torch.float64)


class NoisyStream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        first = draw()
        for index in range(self.length):
            yield torch.tensor([float(index), *draw(), *first], dtype=torch.float64)


class Stream(IterableDataset):
    """The numbers 0 to length - 1. Without a length."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))
