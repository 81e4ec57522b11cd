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
_RECENT = 16
_OF_ALL = "default_pg"


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
        return f"{self.name} number {self.number}{self._tensors}".lower()

    @property
    def what(self) -> str:
        """Without its number."""
        return f"{self.name}{self._tensors}".lower()

    @property
    def _tensors(self) -> str:
        if not self.shapes:
            return ""
        shapes = ", ".join(str(list(shape)) for shape in self.shapes[:_MOST_SHAPES])
        more = ", ..." if len(self.shapes) > _MOST_SHAPES else ""
        return f" (shape {shapes}{more} of {'/'.join(sorted(set(self.dtypes)))})"


@dataclass(frozen=True)
class Counts:
    """How many collectives this process has begun and ended since its process groups were opened."""

    num_done: int
    """In all groups."""
    begun: Mapping[str, int]
    """By group: the number of the newest one that was begun."""


@dataclass(frozen=True)
class Recorded:
    """What the recorder remembers of this process."""

    pending: Collective | None
    """The oldest collective that was begun and has not ended."""
    recent: tuple[tuple[int, str], ...]
    """Those that it has begun last in the process group of all ranks, oldest first: their numbers, and what they are."""


def recorded() -> Recorded:
    """What is remembered; nothing where nobody records."""
    try:
        dump = _dumper()
        if dump is None:
            return Recorded(None, ())
        entries = json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", ())
        active = [entry for entry in entries if not entry["retired"]]
        of_all = [entry for entry in entries if not entry["is_p2p"] and entry["process_group"][1] == _OF_ALL]
        recent = map(_collective, of_all[-_RECENT:])
        return Recorded(_collective(active[0]) if active else None, tuple((one.number, one.what) for one in recent))
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError):  # another generation of the recorder
        return Recorded(None, ())


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
