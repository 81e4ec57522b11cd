"""The format of a run's event log, the only interface between training and analysis.

Rank 0 writes ``<run directory>/events.jsonl``. Each line is one JSON object with ``event`` first
(its kind), ``time_s`` (seconds since 1970) and the fields of the kind:

=====================  =============================================================================
``start``              ``script``, ``args``, ``module`` (null: not a module), ``cwd``,
                       ``script_sha256``, ``inode`` (of the run directory: a copy has another),
                       ``launcher``, ``world_size``, ``num_nodes``, ``hosts``, ``strategy``,
                       ``precision``, ``nondeterministic`` (a list of operations), ``shards``,
                       ``accumulate``, ``seed``, ``threads``, ``device``, ``device_name``,
                       ``backend``, ``num_cores`` (available to the run on this machine),
                       ``torch``, ``python``, ``lockstep`` (versions), ``driver``, ``cuda``,
                       ``cudnn``, ``cublas``, ``nccl`` (versions, null where they are not known
                       or not used)
``resume``             ``step``, ``checkpoint`` (its name, or null): the run resumes after that
                       step, and the events of later steps will be written again
``step``               ``epoch``, ``step``, ``values``: the values logged in that step, or after it.
                       ``apart``, where there are any: the names of values that were logged between
                       two passes, or after an evaluation
``epoch``              ``epoch``, ``step`` (the last), ``num_steps``, ``num_samples`` and ``wall_s``
                       of one pass over a training loader, as far as this launch took it (it may be
                       asked to stop in the middle); the same without warm-up as ``steady_steps``,
                       ``steady_samples``, ``steady_s``; ``cpu_s`` (a list, by rank: CPU seconds of
                       the process and its loader workers over ``steady_s``), ``peak_rss_bytes`` and
                       ``peak_gpu_bytes`` (lists, by rank; the latter null without a GPU),
                       ``gpu_utilisation`` (a list, by rank: per cent over the pass, null where it
                       cannot be read); ``split`` (a list, by rank: seconds of ``wall_s`` in each
                       part of ``split.PARTS``), ``bound`` (what the speed is limited by:
                       one of these parts, or ``compute``)
``slow``               ``step``, ``rank``, ``host``, ``activity`` (``data``, ``forward``,
                       ``backward`` or ``script``), ``times`` (how many times as long as the median
                       of the others), ``cost`` (the share of all time): the others wait for that
                       rank
``move``               ``step`` (the first of them), ``shards`` (a list, by rank: how many each has
                       from that step on), ``before`` (the same until then), ``gain`` (the share of
                       a step's time that this is predicted to save): shards move from ranks that
                       are slower than the others. A launch begins with even numbers
``memory``             ``step`` (the first of this launch), ``total_bytes``,
                       ``used_before_bytes``, ``used_after_bytes`` (before the first pass, and after
                       that step; by all processes), ``reserved_before_bytes``,
                       ``reserved_after_bytes`` (the same of PyTorch's allocator in this process, or
                       null): the memory of rank 0's GPU. Absent where it cannot be read
``evaluate``           ``epoch``, ``step``, ``values``: the results of one evaluation
``checkpoint``         ``step``, ``kind`` (``checkpoint``, or ``weights``: the best ones), ``name``,
                       ``held_s`` (how long training waited for it), ``wall_s`` (how long it took to
                       write)
``checkpoint_failed``  ``step``, ``error``: rank 0 could not write its part, and training continued
``preempted``          ``step``, ``signal`` (its name), ``rank`` (the lowest that received it),
                       ``saved``: the run was asked to stop, and this launch ends after that step;
                       if ``saved``, with a checkpoint
``audit``              ``step``, ``phase``, ``shard``, ``parameter``, ``ranks`` (that are wrong:
                       one, two if it is one of them, or none), ``where`` (their hosts and devices),
                       ``text``: an audit has found a wrong result, and this launch ends
``end``                ``step``, ``wall_s`` since ``start``: the script has finished
=====================  =============================================================================

``epoch`` counts from 0, ``step`` from 1 (the number of steps of the run up to and including this
one). A reader must ignore kinds and fields that it does not know. Numbers that are not finite are
written as null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from lockstep._base.shapes import Count, Ranks, Seconds, fits, parse

FILE_NAME = "events.jsonl"

Event = Mapping[str, Any]


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
    apart: list[str]


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


class _Move(TypedDict):
    step: Count
    shards: list[Count]
    before: list[Count]
    gain: float


class _Memory(_Any, total=False):
    total_bytes: Count
    used_before_bytes: Count
    used_after_bytes: Count
    reserved_before_bytes: Count | None
    reserved_after_bytes: Count | None


class _Checkpoint(_Any, total=False):
    kind: str
    name: str
    held_s: Seconds | None
    wall_s: Seconds | None


KINDS: Mapping[str, Any] = {
    "start": _Start,
    "resume": _Resume,
    "step": _Values,
    "evaluate": _Values,
    "epoch": _Epoch,
    "slow": _Slow,
    "move": _Move,
    "memory": _Memory,
    "checkpoint": _Checkpoint,
    "checkpoint_failed": _Any,
    "preempted": _Any,
    "audit": _Any,
    "end": _Any,
}
REPEATED = ("step", "epoch", "evaluate", "end")
"""The kinds of events of a step that are written again if a launch resumes before the step."""
NOT_FINITE = "not finite"
"""A number that is written as null, for the user."""
_MOST_RANKS = 4
"""The largest number of ranks in a line."""
_KIND = re.compile(rb'\{"event": ?"(\w{1,40})"')


def read_event(line: str | bytes) -> dict[str, Any] | None:
    """The event in a line; None: it is truncated or damaged, or a field is not of the type in the
    table above."""
    event = read_object(line)
    if event is None or not isinstance(event.get("event"), str):
        return None
    return event if fits(event, KINDS.get(event["event"], _Any)) else None


def read_object(line: str | bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None: it is truncated or damaged."""
    if line[:1] not in ("{", b"{"):  # a gigabyte of zeros, say, which would be decoded first
        return None
    try:
        found = parse(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def kind_of(line: bytes) -> str:
    """The kind of the event in a line, which is not parsed; empty: it is no event, or of an unknown
    kind."""
    # The writer puts `event` first, so the kind is found without parsing the line.
    match = _KIND.match(line)
    return kind if match and (kind := match[1].decode()) in KINDS else ""


def repeated_after(event: Event) -> int | None:
    """Returns the step after which a launch resumes with this event, so that earlier events of
    later steps no longer count; None: the event is no resume."""
    step = event.get("step")
    return step if event["event"] == "resume" and isinstance(step, int) else None


def moved_shards(move: Event) -> str:
    """Describes the numbers of shards that a ``move`` changes, for the user."""
    sizes = enumerate(zip(move["before"], move["shards"], strict=False))
    changed = [f"rank {rank}: {after} instead of {before}" for rank, (before, after) in sizes if after != before]
    return ", ".join(changed[:_MOST_RANKS]) + (f", and {len(changed) - _MOST_RANKS} more" if changed[_MOST_RANKS:] else "")


def describe_move(move: Event) -> str:
    """Describes a ``move`` in one line, for the user."""
    return f"shards moved at step {move['step']} ({moved_shards(move)}) to save {move['gain']:.0%} of step time"


def number_in(fields: Mapping[str, Any], name: str) -> float | None:
    """The finite number with this name in an event or its ``values``; None: it is absent, or not a
    finite number."""
    value = fields.get(name)
    # The comparison is also False for NaN and for infinity.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None  # type: ignore[arg-type]
