"""A pass leaves the samplers where the plain loop does, however it ends, and however far ahead their indices were drawn.

The population: classes of samplers x ways out of a loop x processes with uneven blocks x what draws ahead. What draws ahead is
imitated here, in this process; some combinations run with real workers.
"""

import itertools
import random
from collections import deque

import numpy
import pytest
import torch
from data_helpers import CPU, FakeDriver, Numbers
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lockstep.data.assignment import ShardAssignment
from lockstep.data.fetch import FetchPool
from lockstep.data.loader import PreparedLoader
from lockstep.data.moves import Moves
from lockstep.data.uploads import Uploads
from lockstep.plan.blocks import blocks_of

pytestmark = pytest.mark.timeout(60)
LENGTH = 23


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


class Own(Sampler):
    """A user's sampler, of 23 indices."""

    def __len__(self):
        return LENGTH

    def __iter__(self):
        return (self.draw() for _ in range(LENGTH))


class Lazy(Own):
    def __init__(self):
        self.generator = seeded()

    def draw(self):
        return int(torch.randint(LENGTH, (), generator=self.generator))


class LazyNumpy(Own):
    def __init__(self):
        self.rng = numpy.random.default_rng(3)

    def draw(self):
        return int(self.rng.integers(LENGTH))


class LazyLegacy(LazyNumpy):
    def __init__(self):
        self.rng = numpy.random.RandomState(3)

    def draw(self):
        return int(self.rng.randint(LENGTH))


class LazyPython(Own):
    def __init__(self):
        self.random = random.Random(3)

    def draw(self):
        return self.random.randrange(LENGTH)


class EagerAtOnce(Own):
    """Draws when ``iter()`` is called, not with the first index."""

    def __init__(self):
        self.generator = seeded()

    def __iter__(self):
        return iter(torch.randperm(LENGTH, generator=self.generator).tolist())


class GoesOn(Own):
    """Goes on where it was."""

    def __init__(self):
        self.position = 0

    def draw(self):
        self.position += 1
        return self.position * 7 % LENGTH


class Resumable(GoesOn):
    """The same, and says so."""

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Reporting(Own):
    """Begins at its beginning, except behind ``load_state_dict``."""

    def __init__(self):
        self.position, self.begin = 0, None

    def __iter__(self):
        begin, self.begin = self.begin or 0, None
        for self.position in range(begin + 1, LENGTH + 1):
            yield self.position - 1

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.begin = state["position"]


class Pool(Own):
    """Gives each index once before any comes again, also over passes that are left."""

    def __init__(self):
        self.left = []

    def draw(self):
        if not self.left:
            self.left.extend(range(LENGTH))
        return self.left.pop(len(self.left) // 3)


class Counting(Own):
    """Gives what it has given least."""

    def __init__(self):
        self.given = numpy.zeros(LENGTH, dtype=int)
        self.bias = torch.linspace(0, 0.5, LENGTH)

    def draw(self):
        index = int((torch.from_numpy(self.given) + self.bias).argmin())
        self.given[index] += 1
        self.bias.mul_(0.9)
        return index


class Mixture(Own):
    """Draws from several samplers in turn."""

    def __init__(self):
        self.parts = {"a": [Lazy(), GoesOn()], "b": (LazyPython(),)}
        self.generators = [seeded(5), seeded(6)]

    def __iter__(self):
        parts = [iter(part) for parts in self.parts.values() for part in parts]
        for _ in range(LENGTH // 3):
            yield from (next(part) for part in parts)
            yield int(torch.randint(LENGTH, (), generator=self.generators[1]))


class EpochAndOrder(Own):
    """Remembers nothing that matters: a number set by the script, a list made at the beginning."""

    def __init__(self):
        self.order = list(range(5000))
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ((index * 5 + self.epoch) % LENGTH for index in self.order[:LENGTH])


class Endless(Lazy):
    def __iter__(self):
        return iter(self.draw, None)


class OneList(Sampler):
    """A batch sampler that fills one list, and counts its batches."""

    def __init__(self):
        self.generator = seeded()
        self.number = 0

    def __len__(self):
        return 6

    def __iter__(self):
        indices = []
        for _ in range(6):
            self.number += 1
            indices[:] = [
                self.number % LENGTH,
                *torch.randint(LENGTH, (self.number % 4,), generator=self.generator).tolist(),
            ]
            yield indices


class Wrapper:
    """A batch sampler that is no Sampler, around one."""

    def __init__(self):
        self.inner = BatchSampler(RandomSampler(range(LENGTH), generator=seeded()), 4, drop_last=True)

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return iter(self.inner)


def of(make, **options):
    return lambda: {"batch_size": 4, "sampler": make(), **options}


DATA = range(LENGTH)
SAMPLERS = {
    "sequential": of(lambda: SequentialSampler(DATA)),
    "random": of(lambda: RandomSampler(DATA, generator=seeded())),
    "random with replacement": of(lambda: RandomSampler(DATA, replacement=True, num_samples=40, generator=seeded())),
    "random with more samples": of(lambda: RandomSampler(DATA, num_samples=30, generator=seeded())),
    "shuffled": lambda: {"batch_size": 4, "shuffle": True, "generator": seeded()},
    "shuffled, the last dropped": lambda: {"batch_size": 4, "shuffle": True, "generator": seeded(), "drop_last": True},
    "subset": of(lambda: SubsetRandomSampler(DATA, generator=seeded())),
    "weighted": of(lambda: WeightedRandomSampler([1.0, 2.0, 3.0] * 7, 26, generator=seeded())),
    "weighted without replacement": of(lambda: WeightedRandomSampler([1.0] * 23, 20, replacement=False, generator=seeded())),
    "batches of random": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(DATA, generator=seeded()), 4, drop_last=False)
    },
    "lazy": of(Lazy),
    "lazy, numpy": of(LazyNumpy),
    "lazy, numpy's older": of(LazyLegacy),
    "lazy, python": of(LazyPython),
    "eager at once": of(EagerAtOnce),
    "goes on": of(GoesOn),
    "resumable": of(Resumable),
    "reporting": of(Reporting),
    "pool": of(Pool),
    "counting": of(Counting),
    "mixture": of(Mixture),
    "epoch and order": of(EpochAndOrder),
    "endless": of(Endless),
    "one list": lambda: {"batch_sampler": OneList()},
    "wrapper": lambda: {"batch_sampler": Wrapper()},
    "a list": of(lambda: [4, 2, 0, 2] * 4),
    "ready, random": of(lambda: RandomSampler(range(8), generator=seeded()), batch_size=None),
    "ready, lazy": of(Lazy, batch_size=None),
    "ready, goes on": of(GoesOn, batch_size=None),
}
WAYS = ("break", "error", "replaced")


class Ready(Numbers):
    def __getitem__(self, index):
        return torch.tensor([super().__getitem__(index)] * 4)


def user_loader(name, **options):
    chosen = {**SAMPLERS[name](), **options}
    if name.startswith("ready"):
        return DataLoader(Ready(LENGTH), **chosen)
    return DataLoader(Numbers(LENGTH), collate_fn=list, **chosen)


def plain_passes(name, ends):
    """The indices of each step that a plain loop takes, whose passes end after so many steps; None: they run out."""
    loader = user_loader(name)
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    seen = []
    for epoch, end in enumerate(ends):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        taken = itertools.islice(sampler, end)
        seen.append([[indices] * 4 if loader.batch_sampler is None else list(indices) for indices in taken])
    return seen


class Stopped(Exception):  # noqa: N818
    """An error of the script."""


def take_pass(loader, end, way, kept):
    """The shards of each step that the script takes."""
    steps = []
    if way == "replaced" and end is not None:
        kept.append(iter(loader))
        for _ in range(end):
            steps.append(list(next(kept[-1]).shards))
        return steps
    try:
        for batch in loader:
            steps.append(list(batch.shards))
            if len(steps) == end:
                if way == "break":
                    break
                raise Stopped
    except Stopped:
        pass
    return steps


def prepare(batches, rank, blocks, uploads=False):
    place = ShardAssignment(rank=rank, world_size=len(blocks), num_shards=sum(blocks), seed=0, loader=1)
    place.moves = Moves(blocks_of(blocks))
    loader = PreparedLoader(batches, place, FakeDriver(), CPU)
    if uploads:
        object.__setattr__(loader, "_uploads", Uploads(CPU))
    return loader


def passes(name, ends, way, blocks=(1,), uploads=False, **options):
    """The same as ``plain_passes``, put together from the shards of all ranks."""
    by_rank, kept = [], []
    for rank in range(len(blocks)):
        loader = prepare(user_loader(name, **options), rank, blocks, uploads)
        by_rank.append([take_pass(loader, end, way, kept) for end in ends])
    flat = []
    for of_pass in zip(*by_rank, strict=True):
        flat.append([[int(i) for shards in step for shard in shards for i in shard] for step in zip(*of_pass, strict=True)])
    return flat


def run_ahead(pool, requests):
    """What workers do, in this process: the next requests are drawn before a batch is given."""
    waiting = deque(itertools.islice(requests, 4))
    while waiting:
        request = waiting.popleft()
        waiting.extend(itertools.islice(requests, 1))
        yield pool._fetcher[request]


BLOCKS = [(1,), (1, 2), (3, 1), (4, 1, 1), (1, 1, 4)]
"""Of the fourth, two processes have no samples in most steps: they draw far ahead, which an endless sampler does not bear."""


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_next_pass_begins_where_that_of_a_plain_loop_does(name, monkeypatch):
    in_process, is_endless = FetchPool.run, name == "endless"
    whole = 3 if is_endless else None
    most = 6 if is_endless else min(6, len(plain_passes(name, [None])[0]))
    for number, (ahead, way, end) in enumerate(itertools.product((0, 1, 2), WAYS, range(1, most + 1))):
        monkeypatch.setattr(FetchPool, "run", run_ahead if ahead else in_process)
        monkeypatch.setattr("lockstep.data.loader.fetches_ahead", lambda _, ahead=ahead: ahead == 2)
        ends = [end, whole, end, 2]
        blocks = BLOCKS[number % (3 if is_endless else 5)]
        assert passes(name, ends, way, blocks, uploads=ahead == 2) == plain_passes(name, ends), (ahead, way, end, blocks)


REAL = ["shuffled", "lazy, python", "reporting", "pool", "one list", "ready, lazy"]


@pytest.mark.parametrize(("number", "name"), list(enumerate(REAL)))
def test_the_next_pass_begins_there_with_real_workers_too(number, name):
    way, blocks = WAYS[number % 3], BLOCKS[number % 2]
    options = {"num_workers": 2, "persistent_workers": number % 3 != 1}
    ends = [1 + number % 4, 3, None]
    assert passes(name, ends, way, blocks, uploads=number > 2, **options) == plain_passes(name, ends)
