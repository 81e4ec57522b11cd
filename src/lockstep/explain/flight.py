"""PyTorch's Flight Recorder: which collective a process has begun and not ended.

The recorder is on by default, for Gloo and for NCCL; its reader has no public name in Python, so this is the one place that
calls it. Reading takes milliseconds where thousands of collectives are remembered: only for a process that seems to wait.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_MOST_SHAPES = 3


@dataclass(frozen=True)
class Collective:
    """One that a process has begun."""

    number: int
    """In its process group, counted from 1: equal numbers belong together."""
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    group: str
    began_s: float
    """Since 1970."""

    def __str__(self) -> str:
        if not self.shapes:
            return f"{self.name} number {self.number}".lower()
        shapes = ", ".join(str(list(shape)) for shape in self.shapes[:_MOST_SHAPES])
        more = ", ..." if len(self.shapes) > _MOST_SHAPES else ""
        return f"{self.name} number {self.number} (shape {shapes}{more} of {'/'.join(sorted(set(self.dtypes)))})".lower()


@dataclass(frozen=True)
class Counts:
    """How many collectives this process has begun and ended since its process groups were opened."""

    num_done: int
    """In all groups."""
    begun: Mapping[str, int]
    """By group: the number of the newest one that was begun."""


def pending() -> Collective | None:
    """The oldest collective that this process has begun and not ended; None: there is none, or nobody has recorded it."""
    try:
        dump = _dumper()
        if dump is None:
            return None
        entries = json.loads(dump(includeCollectives=True, onlyActive=True)).get("entries", ())
        active = [entry for entry in entries if not entry["retired"]]
        return _collective(active[0]) if active else None
    except (RuntimeError, ValueError, KeyError, TypeError):  # another generation of the recorder
        return None


def counts() -> Counts:
    """How far this process is. Takes some 50 µs, however many collectives are remembered."""
    try:
        dump = _dumper()
        groups = {} if dump is None else json.loads(dump(includeCollectives=False)).get("pg_status", {})
        done = sum(max(0, int(group["last_completed_collective"])) for group in groups.values())
        return Counts(done, {name: int(group["last_enqueued_collective"]) for name, group in groups.items()})
    except (RuntimeError, ValueError, KeyError, TypeError):
        return Counts(0, {})


def _dumper() -> Callable[..., Any] | None:
    """The recorder's reader; None: there is nothing to read yet.

    Not asked before a group is open: the recorder then takes its size from variables that the script may yet set. And torch is
    never imported for it.
    """
    distributed = sys.modules.get("torch.distributed")
    # While it is being imported it has no such names; a build may have none at all.
    is_initialized = getattr(distributed, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    return getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)


def _collective(entry: dict[str, Any]) -> Collective:
    return Collective(
        number=int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]),
        name=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        shapes=tuple(tuple(shape) for shape in entry["input_sizes"][: _MOST_SHAPES + 1]),
        dtypes=tuple(map(str, entry["input_dtypes"][: _MOST_SHAPES + 1])),
        group=str(entry["process_group"][1]),
        began_s=int(entry["time_created_ns"]) / 1e9,
    )
