"""Parses JSON of files in a run directory, with checked types: a file may be damaged, from another
version, or written by another user.

The types are the dataclasses and typed dictionaries that readers use anyway, so that each format is
described once."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import reprlib
import types
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")

_LARGEST = 1 << 64
_MOST_DIGITS = 20
_MOST_NESTED = 64
_TOO_DEEP = "it is nested too deeply"
MOST_RANKS = 1 << 20

Count = Annotated[int, lambda number: 0 <= number < 1 << 48]
"""The type of numbers of steps, bytes, samples and the like."""
Ranks = Annotated[int, lambda number: 1 <= number <= MOST_RANKS]
"""The type of numbers of processes, over which readers iterate."""
Seconds = Annotated[float, lambda number: abs(number) < 1e11]
"""The type of durations, and of seconds since 1970, that the calendar can show."""


def parse(data: bytes | str) -> Any:
    """Returns the JSON value in a text. Numbers that are not finite, or do not fit into 64 bits,
    are read as null.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(data, parse_int=_whole, parse_float=_finite, parse_constant=lambda _: None)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(data, value)
    return value


def _check_depth(data: bytes | str, value: Any) -> None:
    """Refuses what the parser in C can read, but recursive readers cannot."""
    brackets = data.count(b"[") + data.count(b"{") if isinstance(data, bytes) else data.count("[") + data.count("{")
    if brackets <= _MOST_NESTED:  # of nearly all, in a fraction of the time of parsing
        return
    # Level by level: recursion is what such a value would exhaust.
    level = [value]
    for _ in range(_MOST_NESTED):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, (dict, list))]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _inside(value: Any) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _whole(digits: str) -> int | None:
    # 2**64 has 20 digits. To convert a longer text takes quadratic time, and fails above 4,300
    # digits.
    number = int(digits) if len(digits) <= _MOST_DIGITS else _LARGEST
    return number if abs(number) < _LARGEST else None


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def check(value: T, name: str = "") -> T:
    """Returns a dataclass made from JSON, after checking that all its fields, and theirs, have the
    declared types.

    Raises:
        ValueError: a field has another type.
    """
    kind: Any = type(value)
    for field, test in _fields(kind).items():
        if not test(getattr(value, field)):
            raise ValueError(f"{name}{field} is {reprlib.repr(getattr(value, field))}")
    return value


def fits(value: Any, kind: Any) -> bool:
    """Returns whether a value read from JSON has a type: for a generic type, with all that it
    contains."""
    return _fits(kind)(value)


Test = Callable[[Any], bool]


def _fields(kind: Any) -> dict[str, Test]:
    """Returns the tests for the fields of a dataclass. (mypy does not accept a type as the argument
    of the cached function.)"""
    return _fields_once(kind)


@functools.cache
def _fields_once(kind: Any) -> dict[str, Test]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _fits(hints[field.name]) for field in dataclasses.fields(kind)}


@functools.cache
def _fits(kind: Any) -> Test:
    """The test for a type, made once for each."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: True
    if kind is float:
        return lambda value: type(value) is float or type(value) is int
    # The exact type: `true` of JSON is a bool, which is an int in Python, and no number here.
    if kind in (int, bool, str):
        return lambda value: type(value) is kind
    if origin is Annotated:
        is_it, holds = _fits(args[0]), args[1]
        return lambda value: is_it(value) and holds(value)
    if origin in (Union, types.UnionType):
        choices = [_fits(arg) for arg in args]
        return lambda value: any(choice(value) for choice in choices)
    if is_typeddict(kind):
        return _fits_typed_dict(kind)
    if dataclasses.is_dataclass(kind):
        return _fits_dataclass(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = map(_fits, args)
        return lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())
    if origin is tuple and args[-1] is not ...:
        tests = [_fits(arg) for arg in args]
        return lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(tests)
            and all(test(item) for test, item in zip(tests, value, strict=True))
        )
    if isinstance(origin, type) and issubclass(origin, Collection):
        each = _fits(args[0])
        return lambda value: isinstance(value, (list, tuple)) and all(each(item) for item in value)
    return lambda value: isinstance(value, origin or kind)


def _fits_dataclass(kind: Any) -> Test:
    def test(value: Any) -> bool:
        if type(value) is not kind:
            return False
        # Looked up now, since a class may contain its own.
        return all(fits(getattr(value, name)) for name, fits in _fields(kind).items())

    return test


def _fits_typed_dict(kind: Any) -> Test:
    tests = {name: _fits(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    required = kind.__required_keys__
    return lambda value: (
        isinstance(value, dict)
        and required <= value.keys()
        and all(test(value[name]) for name, test in tests.items() if name in value)
    )
