"""``lockstep runs --csv``: what a run has logged, for spreadsheets and data frames."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from lockstep.base.errors import ConfigError
from lockstep.base.visible import visible
from lockstep.journal.history import read_history

_LOGGED = ("kind", "epoch", "step", "time_s")
_MEASURED = ("num_steps", "num_samples", "wall_s", "bound")
"""Columns of passes over a training loader: rows of the kind ``epoch``."""
_EMPTY: Mapping[str, Any] = {}


def write_values(run_dir: Path, file: TextIO) -> None:
    """Write one row per step with logged values, evaluation, and pass over a training loader, in order; one column per value.

    Steps repeated after a resume appear once. Empty cells: not logged there, or not finite.
    """
    try:
        rows = list(_rows(read_history(run_dir)))
    except FileNotFoundError:  # it has only just begun
        rows = []
    except OSError as error:
        raise ConfigError(f"what {run_dir} has logged cannot be read: {error}") from error
    # A script may log a value under the name of one of our columns; its own comes with its kind.
    reserved = {*_LOGGED, *_MEASURED}
    names = dict.fromkeys(name for _, _, values in rows for name in values)
    columns = {name: f"value_{name}" if name in reserved else name for name in names}
    has_passes = any(measured for _, measured, _ in rows)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*_LOGGED, *map(_shown, columns.values()), *(_MEASURED if has_passes else ())])
    for logged, measured, values in rows:
        cells = [*logged, *map(values.get, columns), *(map(measured.get, _MEASURED) if has_passes else ())]
        writer.writerow(map(_shown, cells))


def _shown(cell: Any) -> Any:
    return visible(cell) if isinstance(cell, str) else cell


def _rows(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[list[Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Of each row: the common cells, the measurements of a pass, and the logged values by name."""
    for event in events:
        if event["event"] in ("step", "evaluate", "epoch"):
            logged = [event["event"], event.get("epoch"), event.get("step"), event.get("time_s")]
            yield logged, event if event["event"] == "epoch" else _EMPTY, event.get("values") or _EMPTY
