"""PyTorch's Flight Recorder: which collectives this process has begun, and which of them has not
ended.

There are two recorders, both on by default: NCCL's own, in builds with CUDA, and the general one,
which records Gloo's collectives (in newer versions NCCL's, too). Their readers are private in
Python, so only this module calls them. Reading takes milliseconds if thousands of collectives are
recorded, so it is done only for a process that seems to wait."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MOST_SHAPES = 3
_RECENT = 16
_READERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_UNKNOWN_FORMAT = (RuntimeError, ValueError, KeyError, TypeError, IndexError)
"""Raised for another version of the recorder."""


@dataclass(frozen=True)
class Collective:
    """A collective that this process has begun."""

    number: int
    """The number in its process group, from 1. Calls with equal numbers belong together."""
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    group: str
    """The name of the group, the same on all its ranks."""
    began_s: float
    """The time at which it was begun, in seconds since 1970."""
    members: tuple[int, ...] = ()
    """The ranks of the group, numbered as in the run; empty: unknown."""

    def __str__(self) -> str:
        return f"{self.name} number {self.number}{self._tensors}".lower()

    @property
    def what(self) -> str:
        """The name and tensors, without the number."""
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
    """The numbers of collectives that this process has begun and finished since its process groups
    were created."""

    num_done: int
    """The number of finished collectives, in all groups together."""
    begun: Mapping[str, int]
    """The number of the latest collective that was begun in each group, by the group's name. (On
    Gloo, messages to single ranks have numbers as well.)"""


@dataclass(frozen=True)
class Recording:
    """The content of the recorders of this process."""

    pending: Collective | None
    """The oldest collective that has not ended."""
    recent: tuple[tuple[int, str, str], ...]
    """The latest collectives, oldest first: number in the group, name and tensors, and the group's
    name."""


def read_recording() -> Recording:
    """The content of the recorders; empty if there is no recorder."""
    try:
        dumped = [entry for dump in _read(includeCollectives=True, onlyActive=False) for entry in dump.get("entries", ())]
        _learn_names(dumped)
        by_identity = {(*entry["process_group"], entry["profiling_name"], _number(entry)): entry for entry in dumped}
        entries = sorted(by_identity.values(), key=lambda entry: int(entry["time_created_ns"]))
        pending = next((_collective(entry) for entry in entries if not entry["retired"]), None)
        recent = [_collective(entry) for entry in entries if not entry["is_p2p"]][-_RECENT:]
        return Recording(pending, tuple((collective.number, collective.what, collective.group) for collective in recent))
    except _UNKNOWN_FORMAT:
        return Recording(None, ())


def counts() -> Counts:
    """The numbers of collectives that were begun and finished. Takes about 50 µs, and milliseconds
    when a group is new."""
    try:
        done: dict[str, int] = {}
        begun: dict[str, int] = {}
        for dump in _read(includeCollectives=False):
            for number, group in dump.get("pg_status", {}).items():
                done[number] = max(done.get(number, 0), int(group["last_completed_collective"]))
                begun[number] = max(begun.get(number, -1), int(group["last_enqueued_collective"]))
        if not begun.keys() <= _names.keys():
            for dump in _read(includeCollectives=True, onlyActive=False):
                _learn_names(dump.get("entries", ()))
            _names.update({number: "" for number in begun if number not in _names})
        return Counts(sum(done.values()), {name: count for number, count in begun.items() if (name := _names[number])})
    except _UNKNOWN_FORMAT:
        return Counts(0, {})


def has_recorded() -> bool:
    """Whether this process has ever begun a collective, also in a group that was destroyed. For the
    end of a program only: reading fixes a recorder's size (see ``_read``)."""
    readers = [getattr(sys.modules.get("torch._C._distributed_c10d"), name, None) for name in _READERS]
    try:
        dumps = [json.loads(reader(includeCollectives=True, onlyActive=False)) for reader in readers if reader is not None]
        return any(dump.get("entries") for dump in dumps)
    except _UNKNOWN_FORMAT:
        return True  # it cannot be known that it has not


_names: dict[str, str] = {}
"""The names of this process's groups, by the recorders' numbers. Those count its own groups only:
other ranks have others. Empty: none of the group's collectives is recorded any more."""


def _learn_names(entries: Iterable[Mapping[str, Any]]) -> None:
    for entry in entries:
        name = str(entry["process_group"][0])
        _names[str(entry.get("pg_id", name))] = name


def _read(**options: bool) -> list[dict[str, Any]]:
    """The content of each recorder of this process.

    Nothing is read before a process group exists: reading fixes a recorder's size, from variables
    that the script may yet set. torch is never imported for it.
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
        group=str(entry["process_group"][0]),
        began_s=int(entry["time_created_ns"]) / 1e9,
        members=_members(entry["process_group"][0]),
    )


def _members(name: str) -> tuple[int, ...]:
    """The ranks of a process group, of which the recorder of Gloo's collectives knows nothing."""
    try:
        groups: Any = sys.modules["torch.distributed.distributed_c10d"]._world.pg_group_ranks
        # Of a group that this process is no member of there is no name.
        return next((tuple(ranks) for group, ranks in groups.items() if getattr(group, "group_name", None) == name), ())
    except (AttributeError, KeyError, RuntimeError):  # RuntimeError: a group was created meanwhile
        return ()
