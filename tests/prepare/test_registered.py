"""Promises of registered things: they are filled again in place, and what could not be is refused
before training."""

import collections
import json
import random

import numpy
import pytest
import torch
from codes import raises

from lockstep._base.errors import MismatchError, UsageError
from lockstep._prepare.registry import registered_adapter
from lockstep._state.checkpoint.tree import put_together, take_apart

pytestmark = pytest.mark.timeout(20)


def in_a_file(thing):
    value, tensors = take_apart(registered_adapter("x", thing).state_dict(), "thing")
    return put_together(json.loads(json.dumps(value)), {name: tensor.clone() for name, tensor in tensors.items()})


class Counter:
    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Remembering(list):
    """A list that says for itself what its state is."""

    def state_dict(self):
        return {"first": self[0]}

    def load_state_dict(self, state):
        self.insert(0, state["first"])


def test_a_tensor_is_filled_again_where_it_lies():
    tensor = torch.arange(4.0, requires_grad=True)
    view = tensor.detach()
    state = in_a_file(tensor)
    view.zero_()
    registered_adapter("x", tensor).load_state_dict(state)
    assert view.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert tensor.requires_grad


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ([1, {"a": torch.ones(2)}, None], [7]),
        ({"a": [1.5], 3: "b"}, {"old": 0}),
        (collections.defaultdict(int, {"a": 1}), collections.defaultdict(int, {"b": 2})),
        (collections.Counter("aab"), collections.Counter("c")),
    ],
)
def test_lists_and_dicts_become_what_they_were_and_stay_the_same_objects(then, now):
    state = in_a_file(then)
    registered_adapter("x", now).load_state_dict(state)
    assert type(now) is type(then)
    assert repr(now) == repr(then)


@pytest.mark.parametrize("kind", [torch.Generator, random.Random, numpy.random.default_rng, numpy.random.RandomState])
def test_generators_go_on_with_the_same_numbers(kind):
    def draw(generator):
        if isinstance(generator, torch.Generator):
            return torch.rand(2, generator=generator).tolist()
        return [float(generator.random()) for _ in range(2)]

    old, new = kind(), kind()
    draw(old)
    registered_adapter("x", new).load_state_dict(in_a_file(old))
    assert draw(new) == draw(old)


def test_objects_with_a_state_of_their_own_are_given_it_back_also_if_they_are_lists():
    old, new = Counter(), Counter()
    old.count = 5
    registered_adapter("x", new).load_state_dict(in_a_file(old))
    assert new.count == 5
    remembering = Remembering([1])
    registered_adapter("x", remembering).load_state_dict(in_a_file(Remembering([2, 3])))
    assert remembering == [2, 1]


@pytest.mark.parametrize("thing", [3, "text", None, (1, 2), object(), {1, 2}, lambda: 0, numpy.zeros(3)])
def test_what_could_not_be_given_its_state_back_is_refused_by_name_with_what_to_do(thing):
    with raises(UsageError, "cannot-register") as refused:
        registered_adapter("x", thing)
    assert type(thing).__name__ in str(refused.value)


@pytest.mark.parametrize(
    ("then", "now", "kinds"),
    [
        (torch.zeros(1), torch.zeros(8), ["shape (1,), float32", "shape (8,), float32"]),
        (torch.zeros(2), torch.zeros(2).long(), ["float32", "int64"]),
        ({"a": 1}, [1], ["a dict", "a list"]),
        ([1], {}, ["a list", "a dict"]),
        ([1], torch.zeros(1), ["a list", "a tensor"]),
    ],
)
def test_a_thing_of_another_kind_is_an_error_that_names_both_and_changes_nothing(then, now, kinds):
    before = repr(now)
    with raises(MismatchError, "registered-kind-changed") as refused:
        registered_adapter("x", now).load_state_dict(in_a_file(then))
    assert all(kind in str(refused.value) for kind in ["register('x'", *kinds])
    assert repr(now) == before
