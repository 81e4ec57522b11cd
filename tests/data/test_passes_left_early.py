"""A pass leaves the samplers where the plain loop does, however it ends, and however far ahead
their indices were drawn.

The population: classes of samplers x ways out of a loop x processes with uneven blocks x what draws
ahead. What draws ahead is imitated here, in this process; some combinations run with real workers.
"""

import itertools
import random
import re

import numpy
import pytest
import torch
from data_helpers import CPU, FakeDriver, Numbers, assignment, run_ahead
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lockstep._base.errors import DataError
from lockstep._data.assignment import ShardAssignment
from lockstep._data.block_schedule import BlockSchedule
from lockstep._data.fetch import FetchPool
from lockstep._data.loader import PreparedLoader
from lockstep._data.uploads import Uploads
from lockstep._plan.blocks import blocks_of

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


class LazyOfProcess(Own):
    def draw(self):
        return (int(torch.randint(LENGTH, ())) + numpy.random.randint(LENGTH) + random.randrange(LENGTH)) % LENGTH


class BatchesOfProcess(BatchSampler):
    def __iter__(self):
        return (indices[torch.randint(2, ()) :] for indices in super().__iter__())


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
OF_PROCESS = {
    "shuffled, of the process": lambda: {"batch_size": 4, "shuffle": True},
    "weighted, of the process": of(lambda: WeightedRandomSampler([1.0, 2.0, 3.0] * 7, 26)),
    "subset, of the process": of(lambda: SubsetRandomSampler(DATA)),
    "lazy, of the process": of(LazyOfProcess),
    "batches, of the process": lambda: {"batch_sampler": BatchesOfProcess(LazyOfProcess(), 4, drop_last=False)},
    "ready, of the process": lambda: {"batch_size": None, "shuffle": True},
}
"""Samplers that draw from the process's generators, which have a stream for each draw."""
WAYS = ("break", "error", "replaced")


class Ready(Numbers):
    def __getitem__(self, index):
        return torch.tensor([super().__getitem__(index)] * 4)


def user_loader(name, **options):
    chosen = {**(SAMPLERS | OF_PROCESS)[name](), **options}
    if name.startswith("ready"):
        return DataLoader(Ready(LENGTH), **chosen)
    return DataLoader(Numbers(LENGTH), collate_fn=list, **chosen)


def plain_passes(name, ends):
    """The indices of each step that a plain loop takes, whose passes end after so many steps; None:
    they run out."""
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
    place.moves = BlockSchedule(blocks_of(blocks))
    loader = PreparedLoader(batches, place, FakeDriver(), CPU)
    if uploads:
        object.__setattr__(loader, "_uploads", Uploads(CPU, batches))
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


BLOCKS = [(1,), (1, 2), (3, 1), (4, 1, 1), (1, 1, 4)]
"""Of the fourth, two processes have no samples in most steps: they draw far ahead, which an endless
sampler does not bear."""


def check_passes(name, numbers, monkeypatch):
    """Of every fetching ahead x way out of a loop x step at which it is left, those with one of
    these numbers."""
    in_process, is_endless = FetchPool.run, name == "endless"
    whole = 3 if is_endless else None
    most = 6 if is_endless else min(6, len(plain_passes(name, [None])[0]))
    for number, (end, ahead, way) in enumerate(itertools.product(range(1, most + 1), (0, 1, 2), WAYS)):
        if number not in numbers:
            continue
        monkeypatch.setattr(FetchPool, "run", run_ahead if ahead else in_process)
        monkeypatch.setattr("lockstep._data.loader.fetches_ahead", lambda _, ahead=ahead: ahead == 2)
        ends = [end, whole, end, 2]
        blocks = BLOCKS[number % (3 if is_endless else 5)]
        assert passes(name, ends, way, blocks, uploads=ahead == 2) == plain_passes(name, ends), (ahead, way, end, blocks)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_next_pass_begins_where_that_of_a_plain_loop_does(name, monkeypatch):
    check_passes(name, range(0, 54, 4), monkeypatch)  # each of what draws ahead with each way, at every step


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLERS)
def test_it_begins_there_however_the_one_before_ended(name, monkeypatch):
    check_passes(name, range(54), monkeypatch)


@pytest.mark.parametrize("name", OF_PROCESS)
def test_without_a_generator_of_its_own_a_pass_has_its_indices_however_the_one_before_ended(name, monkeypatch):
    whole, in_process = passes(name, [None] * 3, "break"), FetchPool.run
    assert whole[0] != whole[1] != whole[2]
    for number, (ahead, way, end) in enumerate(itertools.product((0, 1, 2), WAYS, (1, 3))):
        monkeypatch.setattr(FetchPool, "run", run_ahead if ahead else in_process)
        monkeypatch.setattr("lockstep._data.loader.fetches_ahead", lambda _, ahead=ahead: ahead == 2)
        ends, blocks = [end, None, 2], BLOCKS[number % 5]
        expected = [steps[:end] for steps, end in zip(whole, ends, strict=True)]
        assert passes(name, ends, way, blocks, uploads=ahead == 2) == expected, (ahead, way, end, blocks)


REAL = ["shuffled", "lazy, python", "reporting", "pool", "one list", "ready, lazy"]


@pytest.mark.parametrize(("number", "name"), list(enumerate(REAL)))
def test_the_next_pass_begins_there_with_real_workers_too(number, name):
    way, blocks = WAYS[number % 3], BLOCKS[number % 2]
    options = {"num_workers": 2, "persistent_workers": number % 3 != 1}
    ends = [1 + number % 4, 3, None]
    assert passes(name, ends, way, blocks, uploads=number > 2, **options) == plain_passes(name, ends)


class Unreadable(Numbers):
    def __getitem__(self, index):
        if index == 13:
            raise ValueError(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("name", ["shuffled", "lazy", "goes on"])
def test_an_error_of_the_data_ends_a_pass_behind_the_step_that_was_asked_for(name, monkeypatch):
    def found(ahead):
        monkeypatch.setattr(FetchPool, "run", run_ahead if ahead else in_process)
        monkeypatch.setattr("lockstep._data.loader.fetches_ahead", lambda _: ahead == 2)
        loader = prepare(DataLoader(Unreadable(LENGTH), collate_fn=list, **SAMPLERS[name]()), 0, (6,), uploads=ahead == 2)
        seen = []
        for _ in range(5):
            try:
                for batch in loader:
                    seen.append(list(batch.shards))
            except DataError:
                seen.append("failed")
        return seen

    in_process = FetchPool.run
    assert found(0).count("failed") > 1
    assert found(1) == found(2) == found(0)


# Several loaders


def drawn_by(loop, ahead, monkeypatch):
    """What ``loop(loaders)`` sees of two loaders over one generator, if indices are drawn ahead or
    not, or the error."""
    with monkeypatch.context() as patched:
        if ahead:
            patched.setattr(FetchPool, "run", run_ahead)
        generator, driver = seeded(), FakeDriver()
        loaders = [
            PreparedLoader(
                DataLoader(Numbers(LENGTH), 4, shuffle=True, generator=generator, collate_fn=list),
                assignment(loader=number),
                driver,
                CPU,
            )
            for number in (1, 2)
        ]
        try:
            return [[list(batch.shards) for batch in batches] for batches in loop(*loaders)]
        except DataError as error:
            return error


def one_after_another(a, b):
    for _ in range(3):
        yield itertools.islice(a, 2)
        yield b
        yield itertools.islice(b, 3)


def nested(a, b):
    for _ in range(3):
        for outer in itertools.islice(a, 1):
            yield [outer]
            yield itertools.islice(b, 2)


def side_by_side(a, b):
    for _ in range(2):
        yield from itertools.islice(zip(a, b, strict=True), 2)


def side_by_side_to_the_end(a, b):
    for _ in range(2):
        yield from zip(a, b, strict=False)


@pytest.mark.parametrize("loop", [one_after_another, nested, side_by_side])
def test_loaders_that_share_a_generator_draw_from_it_in_the_order_of_the_script(loop, monkeypatch):
    assert drawn_by(loop, True, monkeypatch) == drawn_by(loop, False, monkeypatch)


def test_a_generator_that_was_drawn_from_ahead_and_by_another_loader_is_refused(monkeypatch):
    assert isinstance(drawn_by(side_by_side_to_the_end, False, monkeypatch), list)
    error = drawn_by(side_by_side_to_the_end, True, monkeypatch)
    assert isinstance(error, DataError)
    assert ".generator" in str(error)


@pytest.mark.parametrize("ahead", [False, True])
def test_of_two_loaders_side_by_side_the_second_is_not_run_out(ahead, monkeypatch):
    if ahead:
        monkeypatch.setattr(FetchPool, "run", run_ahead)
    driver = FakeDriver()
    loaders = [
        PreparedLoader(user_loader("shuffled, the last dropped"), assignment(loader=number), driver, CPU)
        for number in (1, 2)
    ]
    for _ in range(2):
        pairs = [[list(batch.shards) for batch in pair] for pair in zip(*loaders, strict=False)]
        assert len(pairs) == 5
    first, second = (loader.wrapped.generator.get_state() for loader in loaders)
    plain = seeded()
    for _ in range(2):
        torch.randperm(LENGTH, generator=plain)
    assert torch.equal(second, plain.get_state())
    for _ in range(2):
        torch.randperm(LENGTH, generator=plain)
    assert torch.equal(first, plain.get_state())


# What the script changes


def test_what_the_script_changes_in_a_sampler_stays(monkeypatch):
    monkeypatch.setattr(FetchPool, "run", run_ahead)
    sampler = GoesOn()
    sampler.temperature, sampler.seen = 1.0, []
    loader = PreparedLoader(
        DataLoader(Numbers(LENGTH), 4, sampler=sampler, collate_fn=list), assignment(), FakeDriver(), CPU
    )
    for number, _ in enumerate(loader, 1):
        assert sampler.position == 4 * number
        sampler.temperature /= 2
        sampler.seen.append(number)
        if number == 3:
            break
    assert (sampler.position, sampler.temperature, sampler.seen) == (12, 0.125, [1, 2, 3])


# What cannot be put back


class LargePool(Own):
    def __init__(self):
        self.left = list(range(LENGTH)) * 100

    def draw(self):
        return self.left.pop()


class OneIterator(Own):
    def __init__(self):
        self.numbers = iter(list(range(LENGTH)) * 9)

    def draw(self):
        return next(self.numbers)


class Hidden:
    """Keeps its place where nobody sees it."""

    __slots__ = ("position",)


class Elsewhere(Own):
    def __init__(self):
        self.place = Hidden()
        self.place.position = 0

    def draw(self):
        self.place.position += 1
        return self.place.position % LENGTH

    def state_dict(self):
        return {"position": self.place.position}

    def load_state_dict(self, state):
        self.place.position = state["position"]


@pytest.mark.parametrize(("make", "named"), [(LargePool, "left"), (OneIterator, "numbers"), (Elsewhere, "state_dict()")])
def test_a_sampler_whose_place_cannot_be_put_back_is_refused_when_its_next_pass_begins(make, named, monkeypatch):
    sampler = make()
    loader = PreparedLoader(
        DataLoader(Numbers(LENGTH), 4, sampler=sampler, collate_fn=list), assignment(), FakeDriver(), CPU
    )
    for _ in range(2):  # nothing is drawn ahead: it is as in the plain loop
        for _ in itertools.islice(loader, 2):
            pass
    monkeypatch.setattr(FetchPool, "run", run_ahead)
    for _ in range(2):  # nothing is left early
        for _ in loader:
            pass
    for _ in itertools.islice(loader, 2):
        pass
    with pytest.raises(DataError, match=rf"{make.__name__}.*{re.escape(named)}"):
        next(iter(loader))


class MadeAgain(Own):
    """Has an iterator in an attribute, and a large list in another, but makes them in each pass."""

    def __iter__(self):
        self.left = list(range(LENGTH)) * 100
        self.numbers = (self.left.pop() for _ in range(LENGTH))
        return self.numbers


def test_a_sampler_that_makes_its_objects_in_each_pass_is_not_refused(monkeypatch):
    monkeypatch.setattr(FetchPool, "run", run_ahead)
    batches = DataLoader(Numbers(LENGTH), 4, sampler=MadeAgain(), collate_fn=list)
    loader = PreparedLoader(batches, assignment(), FakeDriver(), CPU)
    seen = [[list(batch.shards) for batch in itertools.islice(loader, 2)] for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]


# Resumed


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_that_resumes_draws_what_the_whole_one_does(name, monkeypatch):
    for ahead, left, taken in itertools.product((False, True), (2, None), (0, 3)):
        if name == "endless" and left is None:
            continue
        monkeypatch.setattr(FetchPool, "run", run_ahead if ahead else FetchPool.run)
        whole, again = (prepare(user_loader(name), 0, (1, 1, 4) if ahead else (6,)) for _ in range(2))
        take_pass(whole, left, "break", [])
        batches = iter(whole)
        for _ in range(taken):
            next(batches)
        if taken:
            next(batches)  # fetched before the checkpoint of the step before is saved
            state = whole.state() | {"skip": taken}
            again.load_state(state)
        else:
            del batches
            again.load_state(whole.state())
            batches = iter(whole)
        resumed = iter(again)
        if taken:
            next(resumed)
        seen = [[list(batch.shards) for batch in itertools.islice(steps, 2)] for steps in (batches, resumed)]
        assert seen[0] == seen[1], (ahead, left, taken)
        seen = [[list(batch.shards) for batch in itertools.islice(loader, 2)] for loader in (whole, again)]
        assert seen[0] == seen[1], (ahead, left, taken)
