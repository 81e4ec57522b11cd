"""What a sampler keeps in many generators, or in objects of the script's classes, is put back
behind each pass, and resumes."""

import itertools
import random

import pytest
from data_helpers import Numbers, assignment
from torch.utils.data import DataLoader, Sampler

from lockstep._data.sources import choose_source

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
LENGTH = 24


class Pool:
    def __init__(self, seed):
        self.rng, self.left = random.Random(seed), []

    def pop(self):
        self.left = self.left or list(range(5))
        return self.left.pop(self.rng.randrange(len(self.left)))


class Holder:
    def __init__(self, pools):
        self.pools = pools


class Own(Sampler):
    def __len__(self):
        return LENGTH

    def __iter__(self):
        return (self.draw(number) for number in range(LENGTH))


class Generators(Own):
    def __init__(self, count):
        self.generators = [random.Random(seed) for seed in range(count)]

    def draw(self, number):
        return self.generators[-1 - number % len(self.generators)].randrange(50)


class Pools(Own):
    def __init__(self, count):
        self.pools = [Pool(seed) for seed in range(count)]

    def draw(self, number):
        return self.pools[-1 - number % len(self.pools)].pop()


class Nested(Own):
    def __init__(self, count):
        self.holder = Holder({seed: Pool(seed) for seed in range(count)})

    def draw(self, number):
        return self.holder.pools[number % 3].pop()


class Lists(Own):
    """Keeps lists that it takes from in place."""

    def __init__(self, count):
        self.lists = {seed: [seed + index for index in range(30)] for seed in range(count)}

    def draw(self, number):
        return self.lists[len(self.lists) - 1 - number % 3].pop()


def one_pass(source, first, epoch, most=None, skip=0):
    taken = []
    for plan, _ in itertools.islice(source.steps(first, epoch, skip), most):
        taken.append([index for micro in plan.micro_batches for index in micro.samples])
        source.taken(plan.number)
    if most is None:
        source.ended()
    return taken


def source_of(kind, count, num_workers):
    return choose_source(DataLoader(Numbers(200), 3, sampler=kind(count), num_workers=num_workers), assignment())


def passes(kind, count, num_workers):
    source = source_of(kind, count, num_workers)
    return [one_pass(source, 1 + 10 * epoch, epoch, 2) for epoch in range(3)]


@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize("kind", [Generators, Pools, Nested, Lists])
def test_they_do_not_depend_on_workers_and_come_back(kind, count):
    assert passes(kind, count, 2) == passes(kind, count, 0)
    source, again = (source_of(kind, count, 0) for _ in range(2))
    one_pass(source, 1, 0)
    again.load_state(source.state(None))
    assert one_pass(again, 11, 1) == one_pass(source, 11, 1)
