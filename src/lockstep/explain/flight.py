"""PyTorch's Flight Recorder: which collective a process has begun and not ended.

There are two recorders, both on by default: NCCL's own, which builds with CUDA have, and the general one, where Gloo's
collectives are (from some version on NCCL's, too). Their readers have no public names in Python, so this is the one place that
calls them. Reading takes milliseconds where thousands of collectives are remembered: only for a process that seems to wait.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MOST_SHAPES = 3
_RECENT = 16
_OF_ALL = "default_pg"
_READERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


@dataclass(frozen=True)
class Collective:
    """One that a process has begun."""

    number: int
    """In its process group, counted from 1: equal numbers belong together."""
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    group: str
    """As in ``Counts``."""
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
        dumped = [entry for dump in _read(includeCollectives=True, onlyActive=False) for entry in dump.get("entries", ())]
        by_identity = {(*entry["process_group"], entry["profiling_name"], _number(entry)): entry for entry in dumped}
        entries = sorted(by_identity.values(), key=lambda entry: int(entry["time_created_ns"]))
        active = [entry for entry in entries if not entry["retired"]]
        of_all = [entry for entry in entries if not entry["is_p2p"] and entry["process_group"][1] == _OF_ALL]
        recent = map(_collective, of_all[-_RECENT:])
        return Recorded(
            _collective(active[0]) if active else None, tuple((collective.number, collective.what) for collective in recent)
        )
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError):  # another generation of the recorder
        return Recorded(None, ())


def counts() -> Counts:
    """How far this process is. Takes some 50 µs, however many collectives are remembered."""
    try:
        done: dict[str, int] = {}
        begun: dict[str, int] = {}
        for dump in _read(includeCollectives=False):
            for name, group in dump.get("pg_status", {}).items():
                done[name] = max(done.get(name, 0), int(group["last_completed_collective"]))
                begun[name] = max(begun.get(name, -1), int(group["last_enqueued_collective"]))
        return Counts(sum(done.values()), begun)
    except (RuntimeError, ValueError, KeyError, TypeError):
        return Counts(0, {})


def _read(**options: bool) -> list[dict[str, Any]]:
    """What each recorder of this process has; empty: there is nothing to read yet.

    None is asked before a group is open: it then takes its size from variables that the script may yet set. And torch is never
    imported for it.
    """
    distributed = sys.modules.get("torch.distributed")
    # While it is being imported it has no such names; a build may have none at all.
    is_initialized = getattr(distributed, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return []
    readers = [getattr(sys.modules.get("torch._C._distributed_c10d"), name, None) for name in _READERS]
    return [json.loads(reader(**options)) for reader in readers if reader is not None]


def _number(entry: dict[str, Any]) -> int:
    return int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"])


def _collective(entry: dict[str, Any]) -> Collective:
    return Collective(
        number=_number(entry),
        name=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        shapes=tuple(tuple(shape) for shape in entry["input_sizes"][: _MOST_SHAPES + 1]),
        dtypes=tuple(map(str, entry["input_dtypes"][: _MOST_SHAPES + 1])),
        group=str(entry.get("pg_id", entry["process_group"][0])),
        began_s=int(entry["time_created_ns"]) / 1e9,
    )
