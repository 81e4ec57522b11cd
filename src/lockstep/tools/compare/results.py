"""Reads the ``results.json`` of a comparison or a verification back into the value that wrote it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from lockstep.base.errors import ConfigError
from lockstep.base.regular import read_bytes
from lockstep.base.shapes import check, parse
from lockstep.tools.compare.comparison import Comparison
from lockstep.tools.trials.study import FILE_NAME, Task
from lockstep.tools.verify.verification import Verification

T = TypeVar("T")


def read_results(directory: Path) -> Comparison | Verification:
    """A comparison or a verification, complete or not.

    Its ``directory`` is the one given here: it may have been moved.

    Raises:
        ConfigError: there are no results, they are damaged, or those of another version.
    """
    file = directory / FILE_NAME
    try:
        content = parse(read_bytes(file))
        # Shards and threads in the file are those of the study, not what was asked for.
        asked = {"script": Path(content["script"]), "shards": content.get("shards_asked"), "threads": None}
        common = {"task": _build(Task, {**content, **asked}), "directory": directory}
        if "settings" in content:
            return check(_build(Verification, {**content, "results": content["settings"], **common}))
        return check(_build(Comparison, {**content, **common}))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing: {directory} is neither a comparison nor a verification") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read as the results of lockstep compare or lockstep verify ({type(error).__name__}: {error}): "
            "it was damaged, or written by another version. Run the command in it again; the runs beside it can still be "
            f"looked at: lockstep runs {directory / 'runs'}"
        ) from error


def _build(kind: Callable[..., T], content: Mapping[str, Any]) -> T:
    """A dataclass from the entries that are its fields. A dataclass in it has an entry, or its fields are among these, and its
    name at most."""
    fields = {}
    for name, hint in _fields(kind).items():
        inner, value = _dataclass_in(hint), content.get(name)
        if inner is not None and (name not in content or isinstance(value, str)):
            fields[name] = _build(inner, content)
        elif name in content:
            fields[name] = _value(inner, value)
    return kind(**fields)


def _value(inner: Callable[..., Any] | None, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(inner, item) for item in value)
    return _build(inner, value) if inner is not None and isinstance(value, Mapping) else value


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _dataclass_in(hint: Any) -> Callable[..., Any] | None:
    """The dataclass that a field is, or may be, or holds some of."""
    return next(
        (kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None
    )
