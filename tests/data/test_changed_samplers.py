"""What the script, or a sampler itself, has changed of a loader's samplers comes back with a run
that resumes.

The population: what is changed x when it is changed x where the run is interrupted.
"""

import json
import random
from collections import deque

import numpy
import pytest
import torch
from data_helpers import Numbers, assignment, same
from torch.utils.data import BatchSampler, DataLoader, Sampler, SubsetRandomSampler, WeightedRandomSampler

from lockstep._data.sources import choose_source
from lockstep._state.checkpoint.tree import put_together, take_apart

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
LENGTH = 12
MANY = 2000


class Own(Sampler):
    """Gives the first indices of what it holds, which ``change`` has changed."""

    def __len__(self):
        return LENGTH

    def __iter__(self):
        return iter([int(item) % 997 for item in list(self.held())[:LENGTH]])


class Shuffled(Own):
    def __init__(self):
        self.order = list(range(MANY))

    def held(self):
        random.shuffle(self.order)
        return self.order


class ShuffledWithin(Own):
    def __init__(self):
        self.groups = {"a": list(range(MANY)), "b": [list(range(100))]}

    def held(self):
        random.shuffle(self.groups["b"][0])
        random.shuffle(self.groups["a"])
        return self.groups["b"][0][:6] + self.groups["a"]


class Queue(Own):
    def __init__(self, most=None):
        self.queue = deque(range(MANY), most)

    def held(self):
        self.queue.rotate(random.randrange(MANY))
        return self.queue


class Used(Own):
    def __init__(self):
        self.used = set()

    def held(self):
        left = sorted({*range(MANY)} - self.used)
        self.used.update(left[:LENGTH])
        return left


class Counts(Own):
    def __init__(self):
        self.counts = dict.fromkeys(range(MANY), 0)

    def held(self):
        given = sorted(self.counts, key=lambda index: (self.counts[index], index))[:LENGTH]
        for index in given:
            self.counts[index] += 1
        return given


class Scores(Own):
    def __init__(self):
        self.scores = numpy.arange(1 << 14, dtype=float)

    def held(self):
        self.scores *= -1
        self.scores[0] += 7
        return numpy.abs(self.scores)


class Importance(WeightedRandomSampler):
    pass


def extend(sampler):
    sampler.indices.extend(range(len(sampler.indices), len(sampler.indices) + 3))


def replace(sampler):
    sampler.indices = [*sampler.indices[1:], 11]


def weigh(sampler):
    sampler.weights.copy_(sampler.weights.roll(1) + 0.25)


def enlarge(batch_sampler):
    batch_sampler.batch_size += 1


def nothing(sampler):
    pass


CASES = {
    "subset, extended": (lambda: SubsetRandomSampler(list(range(6))), extend),
    "subset, replaced": (lambda: SubsetRandomSampler(list(range(6))), replace),
    "weighted": (lambda: WeightedRandomSampler([1.0, 50.0, *[0.0] * 10], LENGTH), weigh),
    "weighted, many": (lambda: WeightedRandomSampler([1.0, 50.0, *[0.0] * (1 << 14)], LENGTH), weigh),
    "a subclass": (lambda: Importance([1.0, 50.0, *[0.0] * 10], LENGTH), weigh),
    "batches": (lambda: BatchSampler(range(LENGTH), 2, drop_last=False), enlarge),
    "batches of weighted": (
        lambda: BatchSampler(WeightedRandomSampler([1.0, *[0.0] * 11], LENGTH), 3, drop_last=False),
        lambda batches: weigh(batches.sampler),
    ),
    **{kind.__name__: (kind, nothing) for kind in (Shuffled, ShuffledWithin, Queue, Used, Counts, Scores)},
    "a bounded queue": (lambda: Queue(MANY), nothing),
}


def launch(name):
    """The source of a new launch, and what the script calls to change the sampler."""
    make, change = CASES[name]
    sampler = make()
    which = {"batch_sampler": sampler} if isinstance(sampler, BatchSampler) else {"sampler": sampler, "batch_size": 2}
    return choose_source(DataLoader(Numbers(1 << 15), **which), assignment()), lambda: change(sampler)


def steps(source, first, epoch, skip=0, after=nothing):
    taken = []
    for plan, _ in source.steps(first, epoch, skip):
        taken.append([index for micro in plan.micro_batches for index in micro.samples])
        source.taken(plan.number)
        after(plan.number)
    source.ended()
    return taken


def through_files(state):
    value, tensors = take_apart(state, "loader")
    return put_together(json.loads(json.dumps(value)), tensors)


@pytest.mark.parametrize("name", CASES)
def test_a_change_between_passes_comes_back(name):
    source, change = launch(name)
    for epoch in range(2):
        steps(source, 1 + 20 * epoch, epoch)
        change()
    state = through_files(source.state(None))
    again, change_again = launch(name)
    again.load_state(state)
    assert again.num_steps() == source.num_steps()
    assert steps(again, 41, 2) == steps(source, 41, 2)
    change(), change_again()
    assert steps(again, 61, 3) == steps(source, 61, 3)


@pytest.mark.parametrize("is_repeated", [False, True], ids=["in the pass before", "before the pass"])
@pytest.mark.parametrize("name", CASES)
def test_a_change_comes_back_within_the_pass_behind_it(name, is_repeated):
    source, change = launch(name)
    steps(source, 1, 0)
    change()
    states = []
    expected = steps(source, 21, 1, after=lambda step: states.append(through_files(source.state(step))))
    for taken in (1, 2):
        again, change_again = launch(name)
        again.load_state(states[taken - 1])
        if is_repeated:
            change_again()
        assert steps(again, 21, 1, skip=taken) == expected[taken:]
        if taken == 2:
            assert steps(again, 41, 2) == steps(source, 41, 2)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("weighted", "a sub", "batches of"))])
def test_a_change_within_a_pass_reaches_the_next_one(name):
    source, change = launch(name)
    states = []

    def after(step):
        if step == 1:
            change()
        states.append(through_files(source.state(step)))

    expected = steps(source, 1, 0, after=after)
    again, _ = launch(name)
    again.load_state(states[1])
    assert steps(again, 1, 0, skip=2) == expected[2:]
    assert steps(again, 21, 1) == steps(source, 21, 1)


def test_a_sampler_that_is_given_other_indices_is_not_resumed_silently():
    """As the tests above see it: a change that does not come back leaves other indices."""
    for name, (_, change) in CASES.items():
        if change is nothing:
            continue
        (one, change), (other, _) = launch(name), launch(name)
        change()
        assert steps(one, 1, 0) != steps(other, 1, 0), name


class Position(Own):
    def __init__(self):
        self.position = 0

    def __iter__(self):
        for _ in range(LENGTH):
            self.position += 1
            yield self.position


class ReadyBatches(Numbers):
    def __getitem__(self, index):
        return torch.tensor([index, index])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_whose_indices_were_drawn_ahead_goes_on_where_the_pass_was_interrupted(num_workers):
    def new_launch():
        return choose_source(DataLoader(ReadyBatches(99), None, sampler=Position(), num_workers=num_workers), assignment())

    def values(source, first, epoch, skip=0, after=nothing):
        found = []
        for plan, data in source.steps(first, epoch, skip):
            found.append([part.tolist() for part in data])
            source.taken(plan.number)
            after(plan.number)
        source.ended()
        return found

    source, states = new_launch(), []
    expected = values(source, 1, 0, after=lambda step: states.append(through_files(source.state(step))))
    again = new_launch()
    again.load_state(states[4])
    assert values(again, 1, 0, skip=5) == expected[5:]
    assert values(again, 21, 1) == values(source, 21, 1)


@pytest.mark.parametrize("kind", [Shuffled, ShuffledWithin, Queue, Used, Counts, Scores])
def test_containers_that_the_script_holds_are_still_the_samplers_after_a_resume(kind):
    def launch():
        sampler = kind()
        return sampler, choose_source(DataLoader(Numbers(1 << 15), 2, sampler=sampler), assignment())

    (sampler, source), (again, resumed) = launch(), launch()
    steps(source, 1, 0)
    held = dict(vars(again))
    resumed.load_state(through_files(source.state(None)))
    assert all(value is held[name] for name, value in vars(again).items())
    assert all(same(value, vars(again)[name]) for name, value in vars(sampler).items())


MADE = [
    deque(range(9), 20),
    deque(range(100), 200),
    dict.fromkeys(range(100), 1.5),
    {1, 2},
    set(range(100)),
    (1, (2.5, "a", None)),
    [True] * 100,
    [1, True, 2.5] * 20,
    [2**70] * 100,
    numpy.arange(5),
    torch.arange(5),
    {"a": [deque([1], 3)], "b": [[1], (2, 3)]},
]


class Making(Own):
    def __init__(self, value):
        self.value, self.made = value, None

    def held(self):
        self.made = self.value
        return range(LENGTH)


@pytest.mark.parametrize("value", MADE, ids=repr)
def test_a_container_that_drawing_makes_is_of_its_kind_after_a_resume(value):
    def launch():
        sampler = Making(value)
        return sampler, choose_source(DataLoader(Numbers(LENGTH), 2, sampler=sampler), assignment())

    (sampler, source), (again, resumed) = launch(), launch()
    steps(source, 1, 0)
    resumed.load_state(through_files(source.state(None)))
    assert repr(again.made) == repr(sampler.made)
    assert again.made is not sampler.made
