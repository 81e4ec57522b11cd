"""JSON from files is read with checked types: numbers that can be computed with, and fields of the
types declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from lockstep._base.shapes import Count, Ranks, Seconds, check, fits, parse


class Needed(TypedDict):
    name: str


class More(Needed, total=False):
    size: Count


@dataclass(frozen=True)
class Inner:
    step: Count


@dataclass(frozen=True)
class Outer:
    inner: Inner
    sizes: tuple[Ranks, ...]
    values: Mapping[str, float | None]
    anything: Any = None


def test_numbers_are_finite_and_fit_into_64_bits_or_null():
    assert parse(b"[1, -1.5, 1e400, -1e400, NaN, Infinity, 18446744073709551615]") == [
        1,
        -1.5,
        *(None,) * 4,
        18446744073709551615,
    ]
    assert parse("[1" + "0" * 100_000 + "]") == [None]
    assert parse("[" * 64 + "]" * 64) != []


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "[" * 65 + "]" * 65, "\0" * 100, b"\xff", "word"])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize(
    ("value", "kind", "is_one"),
    [
        (1, int, True),
        (True, int, False),
        (1, bool, False),
        (1, float, True),
        (1.0, int, False),
        (None, int | None, True),
        ("1", int | None, False),
        (["a"], list[str], True),
        (["a", 1], Sequence[str], False),
        ("a", Sequence[str], False),
        (["a", 1], tuple[str, int], True),
        (["a"], tuple[str, int], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "1"}, Mapping[str, int], False),
        ([], dict[str, int], False),
        (-1, Count, False),
        (0, Ranks, False),
        (10**9, Ranks, False),
        (1e300, Seconds, False),
        ({"name": "a", "unknown": []}, More, True),
        ({"size": 1}, More, False),
        ({"name": "a", "size": -1}, More, False),
        ([], More, False),
    ],
)
def test_a_value_is_of_a_type_with_all_that_it_contains(value, kind, is_one):
    assert fits(value, kind) is is_one


def test_a_dataclass_is_checked_with_all_that_it_contains():
    good = Outer(Inner(1), (1, 2), {"a": 1.5, "b": None})
    assert check(good) is good
    for bad in (
        Outer(Inner(-1), (1,), {}),
        Outer({}, (1,), {}),
        Outer(Inner(1), (0,), {}),
        Outer(Inner(1), (1,), {"a": "x"}),
    ):
        with pytest.raises(ValueError, match=r"inner|sizes|values"):
            check(bad)
