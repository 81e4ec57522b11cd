"""PyTorch's Flight Recorder: which collectives this process has begun, and which of them has not ended.

There are two recorders, both on by default: NCCL's own, in builds with CUDA, and the general one, which records Gloo's
collectives (in newer versions NCCL's, too). Their readers are private in Python, so only this module calls them. Reading takes
milliseconds if thousands of collectives are recorded, so it is done only for a process that seems to wait.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MOST_SHAPES = 3
_RECENT = 16
_DEFAULT_GROUP = "default_pg"
_READERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_UNKNOWN_FORMAT = (RuntimeError, ValueError, KeyError, TypeError, IndexError)
"""Raised for another version of the recorder."""


@dataclass(frozen=True)
class Collective:
    """A collective that this process has begun."""

    number: int
    """In its process group, from 1. Calls with equal numbers belong together."""
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    group: str
    """As in ``Counts``."""
    began_s: float
    """Seconds since 1970."""
    members: tuple[int, ...] = ()
    """The ranks of the group, numbered as in the run; empty: unknown."""

    def __str__(self) -> str:
        return f"{self.name} number {self.number}{self._tensors}".lower()

    @property
    def what(self) -> str:
        """Its name and tensors, without its number."""
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
    """How many collectives this process has begun and ended since its process groups were created."""

    num_done: int
    """In all groups together."""
    begun: Mapping[str, int]
    """By group: the number of the latest collective that was begun."""


@dataclass(frozen=True)
class Recording:
    """What the recorders of this process hold."""

    pending: Collective | None
    """The oldest collective that has not ended."""
    recent: tuple[tuple[int, str], ...]
    """The latest collectives of the default process group, oldest first: number, name and tensors."""


def read_recording() -> Recording:
    """What the recorders hold; nothing if there is none."""
    try:
        dumped = [entry for dump in _read(includeCollectives=True, onlyActive=False) for entry in dump.get("entries", ())]
        by_identity = {(*entry["process_group"], entry["profiling_name"], _number(entry)): entry for entry in dumped}
        entries = sorted(by_identity.values(), key=lambda entry: int(entry["time_created_ns"]))
        pending = next((_collective(entry) for entry in entries if not entry["retired"]), None)
        default = [entry for entry in entries if not entry["is_p2p"] and entry["process_group"][1] == _DEFAULT_GROUP]
        recent = [_collective(entry) for entry in default[-_RECENT:]]
        return Recording(pending, tuple((collective.number, collective.what) for collective in recent))
    except _UNKNOWN_FORMAT:
        return Recording(None, ())


def counts() -> Counts:
    """How many collectives were begun and ended. Takes about 50 µs, however many are recorded."""
    try:
        done: dict[str, int] = {}
        begun: dict[str, int] = {}
        for dump in _read(includeCollectives=False):
            for name, group in dump.get("pg_status", {}).items():
                done[name] = max(done.get(name, 0), int(group["last_completed_collective"]))
                begun[name] = max(begun.get(name, -1), int(group["last_enqueued_collective"]))
        return Counts(sum(done.values()), begun)
    except _UNKNOWN_FORMAT:
        return Counts(0, {})


def _read(**options: bool) -> list[dict[str, Any]]:
    """The content of each recorder of this process.

    Nothing is read before a process group exists: reading fixes a recorder's size, from variables that the script may yet set.
    torch is never imported for it.
    """
    distributed = sys.modules.get("torch.distributed")
    # Missing while it is being imported, and in builds without it.
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
        members=_members(entry["process_group"][0]),
    )


def _members(name: str) -> tuple[int, ...]:
    """The ranks of a process group, of which the recorder of Gloo's collectives knows nothing."""
    try:
        groups: Any = sys.modules["torch.distributed.distributed_c10d"]._world.pg_group_ranks
        return next((tuple(ranks) for group, ranks in groups.items() if group.group_name == name), ())
    except (AttributeError, KeyError, RuntimeError):  # RuntimeError: a group was created meanwhile
        return ()
