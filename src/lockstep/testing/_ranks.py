"""Runs the function in each process of a run, and examines its result."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pickle
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from lockstep._base.errors import UsageError

_LONGEST = 60
"""The largest number of characters of a value that are shown."""


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The result of a function on one rank."""

    value: Any = None
    leaves: Mapping[str, str] = field(default_factory=dict)
    """Each number, text and tensor of the result, by its place: the number itself, or a digest."""
    opaque: str = ""
    """The part of the result that cannot be compared; empty: all can."""
    left_by: tuple[str, str] | None = None
    """``skip`` or ``xfail``, and the reason: the function called pytest's function of that name.
    None: it returned."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A call that is sent to other processes."""

    payload: bytes
    """The function and its arguments, pickled."""
    module: str
    """The module that defines the function."""
    file: str | None
    """The file of that module."""


def call(sent: Sent) -> Returned:
    """Calls the function. Runs in each rank."""
    _make_importable(sent)
    fn, (args, keywords) = pickle.loads(sent.payload)
    try:
        value = fn(*args, **keywords)
    except BaseException as error:
        if (left_by := _outcome_of_pytest(error)) is None:
            raise
        return Returned(left_by=left_by)
    try:
        return Returned(value=value, leaves=dict(_leaves(value, "the result", ())))
    except UsageError as error:
        return Returned(value=value, opaque=str(error))


def _make_importable(sent: Sent) -> None:
    """Import the function's module from its file where it cannot be found by name, as under
    pytest's ``--import-mode importlib``."""
    if sent.file is None or sent.module in sys.modules:
        return
    try:
        importlib.import_module(sent.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{sent.module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        spec = importlib.util.spec_from_file_location(sent.module, sent.file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[sent.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _outcome_of_pytest(error: BaseException) -> tuple[str, str] | None:
    kind = type(error)
    known = {"Skipped": "skip", "XFailed": "xfail"} if kind.__module__ in ("_pytest.outcomes", "builtins") else {}
    return None if kind.__name__ not in known else (known[kind.__name__], str(getattr(error, "msg", None) or error))


def _leaves(value: Any, place: str, within: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """The numbers, texts and tensors of a value.

    Raises:
        UsageError: there is something else in it.
    """
    import numpy  # in the process that trains, these are there
    import torch

    from lockstep._base.digest import digest

    if id(value) in within:
        raise UsageError(f"{place} contains itself")
    inside = (*within, id(value))
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, PurePath)):
        shown = repr(value)
        yield place, shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}… (digest {digest(value)[:12]})"
    elif isinstance(value, (torch.Tensor, numpy.ndarray, numpy.generic)) and str(value.dtype) != "object":
        yield place, f"{_shape(value)}digest {digest(value)[:12]}"
    elif isinstance(value, Mapping):
        yield place, f"{len(value)} entries"
        for key, item in value.items():
            yield from _leaves(item, f"{place}[{key!r}]", inside)
    elif isinstance(value, (list, tuple)):
        yield place, f"{len(value)} items"
        for number, item in enumerate(value):
            yield from _leaves(item, f"{place}[{number}]", inside)
    elif isinstance(value, Set):
        yield place, f"{len(value)} members"
        yield from ((f"{place} has {member}", "yes") for member in sorted(map(repr, value)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from _leaves(getattr(value, part.name), f"{place}.{part.name}", inside)
    else:
        kind = type(value)
        raise UsageError(f"{place} is a {kind.__module__}.{kind.__qualname__}")


def _shape(value: Any) -> str:
    shape = tuple(value.shape)
    if not shape:
        return f"{value.item()!r}, "
    return f"shape {shape}, "
