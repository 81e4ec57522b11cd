"""The run's journal: JSON lines, the only interface between training and analysis.

Rank 0 writes ``<run directory>/events.jsonl``. Each line is one JSON object with ``event`` (its kind), ``time_s``
(seconds since 1970) and the fields of the kind:

=====================  =================================================================================================
``start``              ``script``, ``args``, ``module`` (null: not a module), ``cwd``, ``script_sha256``, ``inode`` (of the
                       run directory: a copy has another), ``launcher``, ``world_size``, ``num_nodes``, ``hosts``,
                       ``strategy``, ``precision``, ``shards``, ``accumulate``, ``seed``, ``threads``, ``device``,
                       ``device_name``, ``backend``, ``num_cores`` (available to the run on this machine), ``torch``,
                       ``python``, ``lockstep`` (versions)
``resume``             ``step``, ``checkpoint`` (its name, or null): the run resumes after that step, and the events of
                       later steps will be written again
``step``               ``epoch``, ``step``, ``values``: the values logged in that step, averaged over all shards
``epoch``              ``epoch``, ``step`` (the last), ``num_steps``, ``num_samples`` and ``wall_s`` of one pass over a
                       training loader, as far as this launch took it (it may be asked to stop in the middle); the same
                       without warm-up as ``steady_steps``, ``steady_samples``, ``steady_s``; ``cpu_s`` (a list, by rank:
                       CPU seconds of the process and its loader workers over ``steady_s``), ``peak_rss_bytes`` and
                       ``peak_gpu_bytes`` (lists, by rank; the latter null without a GPU), ``gpu_utilisation`` (a list,
                       by rank: per cent over the pass, null where it cannot be read); ``split`` (a list, by rank:
                       seconds of ``wall_s`` in each part of ``explain.split.PARTS``), ``bound`` (what the speed is
                       limited by: one of these parts, or ``compute``)
``slow``               ``step``, ``rank``, ``host``, ``activity`` (``data``, ``forward``, ``backward`` or ``script``), ``times``
                       (how many times as long as the median of the others), ``cost`` (the share of all time): the others
                       wait for that rank
``evaluate``           ``epoch``, ``step``, ``values``: the results of one evaluation
``checkpoint``         ``step``, ``kind`` (``checkpoint``, or ``weights``: the best ones), ``name``, ``held_s`` (how long
                       it held up training), ``wall_s`` (how long it took to write)
``checkpoint_failed``  ``step``, ``error``: rank 0 could not write its part, and training continued
``preempted``          ``step``, ``signal`` (its name), ``rank`` (the lowest that received it), ``saved``: the run was asked to
                       stop, and this launch ends after that step; if ``saved``, with a checkpoint
``audit``              ``step``, ``phase``, ``shard``, ``parameter``, ``ranks`` (that are wrong: one, two if it is one of them,
                       or none), ``where`` (their hosts and devices), ``text``: an audit has found a wrong result, and this
                       launch ends
``end``                ``step``, ``wall_s`` since ``start``: the script has ended
=====================  =================================================================================================

``epoch`` counts from 0, ``step`` from 1 (the number of steps of the run up to and including this one). A reader must ignore
kinds and fields that it does not know. Numbers that are not finite are written as null.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from lockstep.regular import MOST_BYTES, open_to_write, read_lines
from lockstep.shapes import Count, Ranks, Seconds, fits, parse
from lockstep.visible import visible

FILE_NAME = "events.jsonl"


class _Any(TypedDict, total=False):
    """Fields that readers rely on, where they are present."""

    time_s: Seconds
    step: Count
    epoch: Count
    rank: Count


class _Start(_Any, total=False):
    script: str
    args: list[str]
    module: str | None
    world_size: Ranks
    num_nodes: Count
    hosts: list[str]
    strategy: str
    device: str
    device_name: str | None
    num_cores: Count
    shards: Count


class _Resume(_Any, total=False):
    checkpoint: str | None


class _Values(_Any, total=False):
    values: dict[str, float | None]


class _Epoch(_Any, total=False):
    num_steps: Count
    num_samples: Count
    wall_s: Seconds
    steady_steps: Count
    steady_samples: Count
    steady_s: Seconds
    cpu_s: list[float | None] | None
    peak_rss_bytes: list[Count | None] | None
    peak_gpu_bytes: list[Count | None] | None
    gpu_utilisation: list[float | None] | None
    split: list[dict[str, Seconds]] | None
    bound: str | None


class _Slow(TypedDict):
    rank: Count
    host: str
    step: Count
    activity: str
    times: float
    cost: float


class _Checkpoint(_Any, total=False):
    kind: str
    name: str
    held_s: Seconds | None
    wall_s: Seconds | None


_KINDS: Mapping[str, Any] = {
    "start": _Start,
    "resume": _Resume,
    "step": _Values,
    "evaluate": _Values,
    "epoch": _Epoch,
    "slow": _Slow,
    "checkpoint": _Checkpoint,
}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON cannot represent it, and most readers reject Python's extension
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class EventWriter:
    """Appends events to the journal of a run directory, each at once.

    While the disk is full, lines are kept in memory, and training continues.

    Args:
        run_dir: of the run.
        name: of the file in it.
    """

    def __init__(self, run_dir: Path, name: str = FILE_NAME) -> None:
        self._path = run_dir / name
        self._fd = open_to_write(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting = b""
        self._has_warned = False
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":  # an earlier launch was killed in the middle of a line
            self._waiting = b"\n"

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        line = json.dumps({"event": event, "time_s": time.time(), **_finite(fields)})
        self._waiting += line.encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except OSError as error:
            if not self._has_warned:
                _warn(
                    f"{self._path} cannot be written: {error}. Training continues, and lines are kept in memory until it "
                    "can be written"
                )
            self._has_warned = True
        else:
            self._has_warned = False

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._fd >= 0:
            self._flush()
            if self._waiting:
                _warn(f"{self._path} has lost its last {self._waiting.count(10)} lines, which could not be written")
            os.close(self._fd)
            self._fd = -1


def _warn(what: str) -> None:
    # Not a Python warning: it could be turned into an error, and a full disk must not end the training.
    with contextlib.suppress(OSError):  # standard error may be a file on that disk
        print(visible(f"lockstep: WARNING: {what}."), file=sys.stderr, flush=True)


def read_events(
    run_dir: Path, damaged: list[int] | None = None, name: str = FILE_NAME, most_bytes: int = MOST_BYTES
) -> Iterator[dict[str, Any]]:
    """The events of a run, in order. Lines that are truncated (the launch was killed while writing) or damaged are skipped.

    Args:
        run_dir: of the run.
        damaged: a list to which the numbers of such lines, from 1, are appended; not that of a last line still being written.
        name: of the file in it.
        most_bytes: the size of the largest file that is read.

    Raises:
        FileNotFoundError: the directory holds no journal.
        OSError: it cannot be read, is too large, or is not a regular file.
    """
    for number, line in enumerate(read_lines(run_dir / name, most_bytes), start=1):
        if (event := read_event(line)) is not None:
            yield event
        elif damaged is not None and line.endswith(b"\n"):
            damaged.append(number)


def read_event(line: str | bytes) -> dict[str, Any] | None:
    """The event in a line; None: it is truncated or damaged, or a field is not of the type in the table above."""
    if line[:1] not in ("{", b"{"):  # a gigabyte of zeros, say, which would be decoded first
        return None
    try:
        event = parse(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    return event if fits(event, _KINDS.get(event["event"], _Any)) else None


def read_history(run_dir: Path) -> list[dict[str, Any]]:
    """The events of a run as if it had never been interrupted: see ``history_of``.

    Raises:
        FileNotFoundError: the directory holds no journal.
    """
    return history_of(read_events(run_dir))


def history_of(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without those that were repeated after a ``resume``. Pure."""
    history: list[dict[str, Any]] = []
    for event in events:
        history = add_to_history(history, event)
    return history


def add_to_history(history: list[dict[str, Any]], event: dict[str, Any]) -> list[dict[str, Any]]:
    """The history with one more event, and after a ``resume`` without the events that will be repeated. May modify the list."""
    if event["event"] == "resume" and (until := number_in(event, "step")) is not None:
        history = [old for old in history if old["event"] not in _REPEATED or (number_in(old, "step") or 0) <= until]
    history.append(event)
    return history


_REPEATED = ("step", "epoch", "evaluate", "end")


def number_in(fields: Mapping[str, Any], name: str) -> float | None:
    """The finite number with this name in an event or its ``values``; None: it is absent, or not a finite number."""
    value = fields.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None  # type: ignore[arg-type]
