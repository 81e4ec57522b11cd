"""Promises of the random streams: they belong to a place in the run, and differ from place to
place."""

import itertools
import random

import numpy
import pytest
import torch
from data_helpers import draw
from hypothesis import given, settings
from hypothesis import strategies as st

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
