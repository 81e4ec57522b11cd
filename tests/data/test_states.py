"""Promises of the state of samplers and generators: what is taken stays as it was, and whoever is
given it goes on alike."""

import random

import numpy
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

from lockstep._data.states import has_state, is_generator, put_state, take_state

pytestmark = pytest.mark.timeout(60)
GENERATORS = {
    "torch": lambda: torch.Generator().manual_seed(1),
    "python": lambda: random.Random(1),
    "numpy": lambda: numpy.random.default_rng(1),
    "numpy, another": lambda: numpy.random.Generator(numpy.random.MT19937(1)),
    "numpy, old": lambda: numpy.random.RandomState(1),
    "numpy, old and new": lambda: numpy.random.RandomState(numpy.random.PCG64(1)),
}


class WithState:
    def __init__(self):
        self.state = {"order": [1, 2]}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class OwnSampler:
    """Draws from two generators, and holds other things too."""

    def __init__(self):
        self.python, self.numpy, self.length, self.inner = random.Random(1), numpy.random.default_rng(1), 3, WithState()

    def __iter__(self):
        return iter([self.python.random() + self.numpy.random() for _ in range(self.length)])


def draw(thing):
    if isinstance(thing, torch.Generator):
        return torch.rand(3, generator=thing).tolist()
    if is_generator(thing):
        # they keep the second of a pair
        normal = thing.gauss if isinstance(thing, random.Random) else thing.normal
        return [float(thing.random()), float(normal(0, 1))]
    return list(thing)


SOURCES = {
    **GENERATORS,
    "random sampler": lambda: RandomSampler(range(9), generator=torch.Generator().manual_seed(1)),
    "weighted sampler": lambda: WeightedRandomSampler([1.0, 2.0, 3.0], 9, generator=torch.Generator().manual_seed(1)),
    "own sampler": OwnSampler,
}


@pytest.mark.parametrize("name", SOURCES)
def test_who_is_given_the_state_draws_what_the_other_one_draws(name):
    old, new = SOURCES[name](), SOURCES[name]()
    first = draw(old)
    state = take_state(old)
    second = draw(old)
    assert second != first
    for _ in range(2):  # later draws leave the state alone
        put_state(new, state)
        assert draw(new) == second


def test_of_an_object_that_says_what_its_state_is_nothing_else_is_looked_at():
    thing = WithState()
    thing.generator = random.Random(1)
    state = take_state(thing)
    thing.state["order"].append(3)
    assert state == {"order": [1, 2]}
    put_state(thing, state)
    assert thing.state == {"order": [1, 2]}


@pytest.mark.parametrize("thing", [SequentialSampler(range(3)), RandomSampler(range(3)), [1, 2], range(3), object()])
def test_what_has_no_state_gives_none_and_takes_it(thing):
    assert not has_state(thing)
    assert take_state(thing) == {}
    put_state(thing, {})


class TakesItApart(WithState):
    def load_state_dict(self, state):
        self.state = {"order": state.pop("order")}


def test_a_state_can_be_put_again():
    source, state = TakesItApart(), {"order": [2, 1]}
    for _ in range(2):
        put_state(source, state)
        assert source.state == {"order": [2, 1]}


class AnotherInterface(WithState):
    def state_dict(self, num_samples, from_beginning):
        raise AssertionError


def test_a_state_dict_with_arguments_is_none():
    assert has_state(TakesItApart())
    assert not has_state(AnotherInterface())
    assert take_state(AnotherInterface()) == {}
