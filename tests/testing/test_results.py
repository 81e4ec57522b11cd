"""Results that differ in anything are told apart, whatever they are made of, and equal ones are
not."""

import collections
import dataclasses
import itertools
import pickle
from pathlib import PurePosixPath

import numpy
import pytest
import torch

from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep.testing._differing import in_results
from lockstep.testing._ranks import Sent, call

pytestmark = pytest.mark.timeout(20)


@dataclasses.dataclass
class Scores:
    loss: float
    names: tuple = ()


VALUES = [
    None,
    True,
    1,
    1.0,
    float("nan"),
    "1",
    b"1",
    PurePosixPath("1"),
    "a" * 100,
    "a" * 99 + "b",
    torch.zeros(2, 3),
    torch.zeros(3, 2),
    torch.zeros(2, 3, dtype=torch.float64),
    torch.tensor([0.0, -0.0]),
    torch.tensor([0.0, 0.0]),
    torch.tensor(0.5),
    numpy.arange(3),
    numpy.float32(0.5),
    [],
    [[]],
    [[], []],
    [1],
    [1, None],
    [None, 1],
    (1, 2),
    (2, 1),
    {},
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 1},
    {"a": {"b": [torch.ones(1)]}},
    {"a": {"b": [torch.zeros(1)]}},
    {1, 2},
    {1, 3},
    collections.OrderedDict(c=1),
    Scores(0.5),
    Scores(0.5, (1,)),
    Scores(0.25),
]


def itself(value):
    return value


def returned(value):
    return call(Sent(payload=pickle.dumps((itself, ((value,), {}))), module=__name__, file=None))


def error_of(one, other):
    setting = Setting(number=1, world_size=1)
    return in_results("f()", returned(one), returned(other), setting, reference=setting)


def test_any_two_different_values_are_told_apart_and_equal_ones_are_not():
    for (i, one), (j, other) in itertools.product(enumerate(VALUES), repeat=2):
        assert (error_of(one, other) is None) == (i == j), (one, other)


def test_what_cannot_be_compared_is_named_wherever_it_is():
    for value in (object(), [1, {"a": object()}], numpy.array([object()], dtype=object)):
        assert returned(value).opaque
    loop = []
    loop.append(loop)
    assert "contains itself" in returned(loop).opaque
