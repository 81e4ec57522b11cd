"""Promises of the random streams: they belong to a place in the run, and differ from place to
place."""

import itertools
import random
import sys

import numpy
import pytest
import torch
from data_helpers import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep._data import streams
from lockstep._data.streams import Purpose, derive, preserve_rng, reseed

pytestmark = pytest.mark.timeout(30)

places = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5)


def drawn(seed, purpose, *place):
    reseed(seed, purpose, *place)
    return draw()


def test_a_place_gives_the_same_numbers_whatever_was_drawn_before():
    first = drawn(3, Purpose.TRAIN, 5, 1)
    for _ in range(7):
        draw()
    torch.rand(1000)
    assert drawn(3, Purpose.TRAIN, 5, 1) == first


def test_streams_differ_between_seeds_purposes_steps_shards_and_loaders():
    places = [
        (seed, purpose, *place)
        for seed in (0, 1)
        for purpose in Purpose
        for place in itertools.chain(itertools.product(range(3), range(3)), itertools.product(range(3), repeat=3))
    ]
    for generator in range(3):
        numbers = [drawn(*place)[generator] for place in places]
        assert len(set(numbers)) == len(places)


@settings(deadline=None, max_examples=200)
@given(places, places)
def test_other_places_have_other_seeds(one, other):
    assert (derive(*one) == derive(*other)) == (one == other)


@settings(deadline=None, max_examples=100)
@given(places, st.integers(0, 4), st.integers(1, 1000))
def test_neighbouring_places_have_unrelated_seeds(place, position, distance):
    position %= len(place)
    neighbour = [*place[:position], place[position] + distance, *place[position + 1 :]]
    assert 8 <= (derive(*place) ^ derive(*neighbour)).bit_count() <= 56


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_every_seed_that_a_run_can_have_is_one_for_all_generators(seed):
    assert len(set(drawn(seed, Purpose.START))) == 3


MASK = 2**64 - 1


def mix(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def plain_seed(*key):
    """The seed of a key, as ``streams`` defines it."""
    value = 0
    for part in key:
        value = mix((value + part + 0x9E3779B97F4A7C15) & MASK)
    return value


def states():
    kind, words, position, has_gauss, gauss = numpy.random.get_state()
    of_torch = torch.default_generator.get_state().tolist()
    return of_torch, (kind, words.tolist(), position, has_gauss, gauss), random.getstate()


def states_of_seed(value):
    """The states of all generators after they were seeded as every script does."""
    torch.manual_seed(value), numpy.random.seed(value & 0xFFFFFFFF), random.seed(value)
    return states()


@pytest.fixture
def seeds_given(monkeypatch):
    """The seeds that streams are started with, in place of starting them."""
    seeds = []
    monkeypatch.setattr(streams, "start_streams", seeds.append)
    return seeds


RUN_SEEDS = (0, 1, 2**32 - 1, 2**63 - 1)
STEPS = (0, 1, 62, 63, 64, 65, 127, 128, 10**6, 2**31 + 5, 2**63 - 1)
"""Around the ends of blocks, and far ahead."""


def keys_at_random(number):
    """Keys of streams of every purpose, as steps ask for them, but in no order: so their steps jump
    as in runs that are resumed, replayed or left."""
    chance = random.Random(5)
    for _ in range(number):
        step = chance.choice((chance.choice(STEPS), chance.randrange(300), chance.randrange(2**40)))
        shard, part, phase = chance.randrange(5), chance.randrange(3), chance.randrange(2)
        purpose = chance.choice(list(Purpose))
        loader = chance.randrange(3)
        key = {
            Purpose.TRAIN: (step, shard, part, phase),
            Purpose.STEP: (step, phase),
            Purpose.FETCH: chance.choice([(loader, step, shard, part), (loader, step, shard, part, phase)]),
        }.get(purpose, (loader, step, part))
        yield chance.choice(RUN_SEEDS), purpose, *key


@pytest.mark.parametrize("has_numpy", [True, False])
def test_every_seed_is_that_of_its_key_in_whatever_order_steps_are_taken(seeds_given, monkeypatch, has_numpy):
    streams._seeds.cache_clear()
    if not has_numpy:
        monkeypatch.delitem(sys.modules, "numpy")
    keys = list(keys_at_random(5000))
    with numpy.errstate(all="raise"):
        for key in keys:
            reseed(*key)
    assert seeds_given == [plain_seed(*key) for key in keys]
    assert seeds_given == [derive(*key) for key in keys]


def test_steps_that_follow_each_other_have_the_seeds_of_their_keys(seeds_given):
    streams._seeds.cache_clear()
    keys = [
        key
        for step in [*range(1, 200), *range(50, 70)]  # resumed from an earlier step
        for key in ((7, Purpose.STEP, step, 0), (7, Purpose.FETCH, 1, step, 3, 0), (7, Purpose.TRAIN, step, 3, 0, 0))
    ]
    for key in keys:
        reseed(*key)
    assert seeds_given == [plain_seed(*key) for key in keys]
    # 3 streams, and 4 blocks of steps: no seed is derived alone, and none twice
    assert streams._seeds.cache_info().misses == 3 * 4


@pytest.mark.parametrize("purpose", Purpose)
def test_all_generators_are_as_after_their_own_functions_for_seeding(purpose):
    for step in range(130):
        random.gauss(0.0, 1.0), numpy.random.standard_normal()  # of a pair, of which one is left
        key = 5, purpose, 1, step, 2, 0
        reseed(*key)
        found = states()
        random.gauss(0.0, 1.0), numpy.random.standard_normal()
        assert found == states_of_seed(plain_seed(*key)), key


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, MASK])
def test_so_they_are_for_seeds_of_any_size(value):
    random.gauss(0.0, 1.0)
    streams.start_streams(value)
    found = states()
    assert found == states_of_seed(value)


def reseed_and_fail():
    torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
    raise ZeroDivisionError


def test_streams_set_aside_go_on_where_they_were_also_after_an_error():
    reseed(0, Purpose.TRAIN, 1, 0)
    expected = [draw() for _ in range(3)]
    reseed(0, Purpose.TRAIN, 1, 0)
    found = [draw()]
    with preserve_rng():
        reseed(0, Purpose.EVALUATE, 9)
        draw()
    found.append(draw())
    with pytest.raises(ZeroDivisionError), preserve_rng():
        reseed_and_fail()
    found.append(draw())
    assert found == expected


@pytest.mark.cuda
def test_the_gpu_draws_from_the_place_too_and_goes_on_where_it_was():
    def on_gpu():
        return torch.rand(3, device="cuda").tolist()

    torch.cuda.init()
    reseed(0, Purpose.TRAIN, 1, 0)
    one, two = on_gpu(), on_gpu()
    reseed(0, Purpose.TRAIN, 1, 1)
    assert on_gpu() != one
    reseed(0, Purpose.TRAIN, 1, 0)
    assert on_gpu() == one
    with preserve_rng():
        on_gpu()
    assert on_gpu() == two
