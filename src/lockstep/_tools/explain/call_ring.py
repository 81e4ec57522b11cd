"""The latest collectives that a process has called, in memory that outlives the process.

A communication library may abort a process at a moment when nothing can be written any more. So
each call is noted before it is made, in memory that the launcher offers to each worker
(``offer_rings``)::

    launcher   memfd_create + fallocate  (open descriptors; /proc/PID/fd/N behind a symlink)
                  |  shared pages
    worker     mmap: | header: magic, count | slot 0 | slot 1 | ... | slot 511 |
                                               ^ call number n is in slot n % 512

It is memory, not a file on a disk: the pages of a mapped file are written back now and then, and a
write to such a page waits for that. Pages are allocated in advance, since a first write to a page
without memory left would kill the process by SIGBUS. A process without such a launcher has a
private ring.

There is no lock between the writer and the reader. The writer fills a slot and then sets the count,
so what is counted is complete. A reader that is overtaken sees another call's number in the slot,
and skips it. Threads of one process take different numbers, since ``itertools.count`` is atomic
under the GIL.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lockstep._base.shapes import parse as parse_json
from lockstep._tools.explain.collective_calls import Call, parse

DIRECTORY = "calls"
_HEADER = struct.Struct("<8sQ")
"""A magic number, and how many calls were noted."""
_MAGIC = b"lckcall2"
_SLOT = struct.Struct("<QQdH")
"""The number of the call in this process, from 1; its number in its group; when it was made; the
length of what follows."""
_SLOT_BYTES = 384
_NUM_SLOTS = 512
_BYTES = _HEADER.size + _NUM_SLOTS * _SLOT_BYTES
_MOST = _SLOT_BYTES - _SLOT.size


class NotedCall(NamedTuple):
    """A call of one rank."""

    number: int
    """PyTorch's number of the call in its group, equal for all calls of one collective; 0: it has
    none, as messages to single ranks."""
    time_s: float
    """The time of the call, in seconds since 1970."""
    group: str
    """The name of the group, the same on all its ranks."""
    life: int
    """A number that differs between groups of one name: a script may close its groups and open them
    again, or give several the same name."""
    call: Call
    via: str
    """The function that the script called, where it has another name (``all_gather_object``); for
    a call of lockstep's, ``own_calls.VIA`` and its purpose."""
    at: str
    """The line of the user's code; empty: unknown."""


def ring_path(private_dir: Path, rank: int) -> Path:
    """The path of a rank's ring in a launch's private directory."""
    return private_dir / DIRECTORY / f"rank-{rank}.calls"


def offer_rings(private_dir: Path, ranks: Sequence[int]) -> list[int]:
    """Let the rings of ranks that are not started yet be memory of this process while the returned
    descriptors are open."""
    descriptors: list[int] = []
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: not Linux
        ring_path(private_dir, 0).parent.mkdir(exist_ok=True)
        for rank in ranks:
            descriptors.append(os.memfd_create("lockstep-calls"))
            os.posix_fallocate(descriptors[-1], 0, _BYTES)  # now, so that a write never fails
            ring_path(private_dir, rank).symlink_to(f"/proc/{os.getpid()}/fd/{descriptors[-1]}")
    return descriptors


def describe(group: str, life: int, call: Call, via: str, at: str) -> bytes:
    """The text of a slot, which is the same for all calls of one line."""
    text = json.dumps([group, life, str(call), via, at]).encode()
    if len(text) > _MOST:
        text = json.dumps([group, life, str(call)[: _MOST // 3], via[:40], at[-_MOST // 3 :]]).encode()
    return text if len(text) <= _MOST else json.dumps([group, life, call.kind, "", ""]).encode()


class CallRing:
    """The ring of this process, its only writer. Calls may be noted in any thread.

    Args:
        path: one that the launcher has offered; None, or if it cannot be opened: the ring is seen
            by this process alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._memory = mmap.mmap(-1, _BYTES)
        with contextlib.suppress(OSError, ValueError):
            if path is not None:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    self._memory = mmap.mmap(descriptor, _BYTES)
                finally:
                    os.close(descriptor)
        self._next = itertools.count(1).__next__
        self.is_open = True
        os.register_at_fork(after_in_child=self._close)

    def note(self, number: int, what: bytes) -> None:
        """Note a call. ``what``: see ``describe``."""
        mine = self._next()
        at = _HEADER.size + mine % _NUM_SLOTS * _SLOT_BYTES
        slot = _SLOT.pack(mine, number, time.time(), len(what)) + what
        self._memory[at : at + len(slot)] = slot
        _HEADER.pack_into(self._memory, 0, _MAGIC, mine)  # last: what it counts is whole

    def recent(self, count: int) -> list[NotedCall]:
        """The latest calls, oldest first."""
        return _in_order(self._memory, count) if self.is_open else []

    def _close(self) -> None:
        """Note nothing more, in a process that was forked: the ring belongs to its parent."""
        self.is_open = False


def read_ring(private_dir: Path, rank: int) -> list[NotedCall]:
    """The latest calls of another process, oldest first, also after it has exited."""
    try:
        with ring_path(private_dir, rank).open("rb", buffering=0) as file:
            return _in_order(file.read(_BYTES))
    except OSError:
        return []


_parsed: dict[bytes, tuple[str, int, Call, str, str]] = {}
_MOST_PARSED = 20_000


def _in_order(content: bytes | mmap.mmap, most: int = _NUM_SLOTS) -> list[NotedCall]:
    if len(content) < _BYTES or content[: len(_MAGIC)] != _MAGIC:
        return []
    count = int(_HEADER.unpack_from(content)[1])
    noted = []
    for mine in range(max(1, count - most + 1), count + 1):
        at = _HEADER.size + mine % _NUM_SLOTS * _SLOT_BYTES
        is_number, number, time_s, length = _SLOT.unpack_from(content, at)
        if is_number != mine:  # it is being overwritten
            continue
        what = content[at + _SLOT.size : at + _SLOT.size + length]
        with contextlib.suppress(ValueError, TypeError):
            if (known := _parsed.get(what)) is None:
                group, life, text, via, place = parse_json(what)
                if len(_parsed) >= _MOST_PARSED:
                    _parsed.clear()
                known = _parsed[what] = str(group), int(life), parse(str(text)), str(via), str(place)
            group, life, call, via, place = known
            noted.append(NotedCall(number, time_s, group, life, call, via, place))
    return noted
