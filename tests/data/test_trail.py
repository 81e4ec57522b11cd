"""Steps that are read again to continue a pass are the same as before: what was read is compared
with the trail that was saved, wherever the two differ, and also if the pass is shorter now."""

import pytest
import torch
from codes import raises
from data_helpers import FakeDriver, Numbers, prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, Sampler

from lockstep._base.errors import MismatchError
from lockstep._data.trail import Trail

pytestmark = pytest.mark.timeout(60)
passes = st.lists(st.integers(0, 2), max_size=6)


def read(steps, skip=0, was=None, **options):
    """The trail after each step of a pass of these batches, from step 11 on."""
    trail = Trail("the source", **{"is_compared": True, **options})
    trail.load(was)
    trail.begin(11, skip)
    found = []
    for step, batch in enumerate(steps, 11):
        trail.add(step, torch.tensor([batch]))
        found.append(trail.behind(step))
    trail.end()
    return found


@settings(max_examples=150, deadline=None)
@given(passes.filter(bool), passes, st.data())
def test_what_is_read_again_is_refused_unless_its_beginning_is_the_same(before, after, data):
    taken = data.draw(st.integers(1, len(before)))
    was = read(before)[taken - 1]
    assert len(read(after, taken, was, is_compared=False)) == len(after)
    if after[:taken] == before[:taken]:
        assert read(after, taken, was)[taken - 1] == was
    else:
        with raises(MismatchError, "samples-not-repeatable"):
            read(after, taken, was)


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(torch.arange(self.length).split(1))


class Order(Sampler):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


KINDS = {
    "ready batches": (lambda length: [torch.full((1,), step) for step in range(length)], "samples-not-repeatable"),
    "a stream": (lambda length: DataLoader(Stream(length), 1), "samples-not-repeatable"),
    "a stream of batches": (lambda length: DataLoader(Stream(length), None), "samples-not-repeatable"),
    "a sampler": (lambda length: DataLoader(Numbers(9), 1, sampler=Order(length)), "indices-not-repeatable"),
}


def of_length(make, length, state=None):
    loader = prepared(make(length), driver=FakeDriver())
    if state is not None:
        loader.load_state(state)
    return loader


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [0, 2, 3, 5])
def test_a_pass_that_is_shorter_now_than_where_it_was_interrupted_is_refused(kind, length):
    make, code = KINDS[kind]
    begun = of_length(make, 5)
    steps = iter(begun)
    [next(steps) for _ in range(4)]  # three are taken once the fourth is asked for
    state = begun.state()
    if length >= 3:
        assert len(list(of_length(make, length, state))) == length - 3
    else:
        with raises(MismatchError, code):
            list(of_length(make, length, state))
