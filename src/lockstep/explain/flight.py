"""PyTorch's Flight Recorder: which collective a process has begun and not ended.

The recorder is on by default, for Gloo and for NCCL; its reader has no public name in Python, so this is the one place that
calls it. Reading takes milliseconds where thousands of collectives are remembered: only for a process that seems to wait.
"""

from __future__ import annotations

import json
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
        shapes = ", ".join(str(list(shape)) for shape in self.shapes[:_MOST_SHAPES])
        more = ", ..." if len(self.shapes) > _MOST_SHAPES else ""
        return f"{self.name} number {self.number} (shape {shapes}{more} of {'/'.join(sorted(set(self.dtypes)))})".lower()


def pending() -> Collective | None:
    """The oldest collective that this process has begun and not ended; None: there is none, or nobody has recorded it."""
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]
    except ImportError:  # a build without it
        return None
    try:
        entries = json.loads(_dump_fr_trace_json(includeCollectives=True, onlyActive=True)).get("entries", ())
        active = [entry for entry in entries if not entry["retired"]]
        return _collective(active[0]) if active else None
    except (RuntimeError, ValueError, KeyError, TypeError):  # another generation of the recorder, or no process group
        return None


def _collective(entry: dict[str, Any]) -> Collective:
    return Collective(
        number=int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]),
        name=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        shapes=tuple(tuple(shape) for shape in entry["input_sizes"][: _MOST_SHAPES + 1]),
        dtypes=tuple(map(str, entry["input_dtypes"][: _MOST_SHAPES + 1])),
        group=str(entry["process_group"][1]),
        began_s=int(entry["time_created_ns"]) / 1e9,
    )
