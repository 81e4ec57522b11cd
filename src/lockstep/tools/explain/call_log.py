"""Which collectives a rank has called, in a file that the launcher reads while it runs.

A call is 20 bytes in a ring: the number of its group, two numbers of the call in that group, and those of what was called and
of the line that called it. What these mean is appended, once each, to a file of names.

The ring is mapped into memory, so that the last calls of a process that its communication library aborts are known, too. Where
the launcher offers memory for it (``offer_memory``), no file system is behind it: a write into a mapped file waits for the disk
now and then, with the interpreter lock. Its blocks are allocated first: a full disk cannot end the process later.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DIRECTORY = "calls"
_HEADER = struct.Struct("<8sQ")
"""A magic number, and how many calls were written so far."""
_MAGIC = b"lckcall1"
_ENTRY = struct.Struct("<IIIII")
_RING = 1 << 14
_AHEAD = _RING // 8
"""The oldest calls of a full ring are not read, since new ones overwrite them meanwhile."""
_MOST_NAMES = 20000
"""After so many different calls, as of a script whose tensors have another shape in each step, shapes are no longer noted."""
_MOST_KNOWN = 10000
_32_BITS = (1 << 32) - 1


def log_path(private_dir: Path, rank: int) -> Path:
    """The path of a rank's log in a launch's private directory."""
    return private_dir / DIRECTORY / f"rank-{rank}.calls"


def offer_memory(private_dir: Path, ranks: Sequence[int]) -> list[int]:
    """Let the logs of ranks that are not started yet be memory of this process while the returned descriptors are open."""
    descriptors: list[int] = []
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: not Linux
        log_path(private_dir, 0).parent.mkdir(exist_ok=True)
        for rank in ranks:
            descriptors.append(os.memfd_create("lockstep-calls"))
            log_path(private_dir, rank).symlink_to(f"/proc/{os.getpid()}/fd/{descriptors[-1]}")
    return descriptors


class Group(NamedTuple):
    """A process group."""

    name: str
    life: int
    """Groups of one name are numbered, from 1: a script may end and open its groups again."""
    members: tuple[int, ...]
    """The ranks, numbered as in the run."""


class Call(NamedTuple):
    """What was called, without anything that may differ between the ranks of a group."""

    kind: str
    """As in ``torch.distributed``."""
    dtype: str
    """Of the tensors; empty: it has none."""
    shape: tuple[int, ...] | None
    """None: it does not count, or is not known."""
    op: str
    root: int | None
    """The rank from which or to which it sends; None: all are alike."""


class Line(NamedTuple):
    """Where a call was made."""

    at: str
    """In the user's code."""
    is_own: bool
    """Whether lockstep called it for itself."""


class LoggedCall(NamedTuple):
    """A call of one rank."""

    group: Group
    place: int
    """Among the calls in its group that this rank has logged, from 1."""
    number: int
    """PyTorch's, of the collective in its group. It also counts what is not logged: on Gloo, messages to single ranks, too."""
    call: Call
    line: Line


class CallLog:
    """The log of one process, its only writer. Calls may be noted in any thread.

    Args:
        path: of the log.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._names_path = path.absolute().with_suffix(".names")
        self._names_path.write_bytes(b"")
        ring = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(ring, 0, _HEADER.size + _RING * _ENTRY.size)
            self._ring = mmap.mmap(ring, 0)
        finally:
            os.close(ring)
        self._num_calls = 0
        self._known: dict[Hashable, int] = {}
        """Numbers by what the caller knows them by: a shortcut that may be forgotten."""
        self._numbers: dict[NamedTuple, int] = {}
        self._counts: dict[type, int] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        os.register_at_fork(after_in_child=self._close)

    def number_of(self, known_by: Hashable, describe: Callable[[], Group | Call | Line]) -> int:
        """The number that stands for what ``describe`` returns. It is called only if ``known_by`` is new.

        Raises:
            OSError: it could not be written.
        """
        number = self._known.get(known_by)
        return self._add(known_by, describe()) if number is None else number

    def note(self, group: int, place: int, number: int, call: int, line: int) -> None:
        """Note a call. ``group``, ``call`` and ``line`` are such numbers; for the others see ``LoggedCall``."""
        with self._lock:
            if not self._is_closed:
                at = _HEADER.size + self._num_calls % _RING * _ENTRY.size
                _ENTRY.pack_into(self._ring, at, group, place & _32_BITS, number & _32_BITS, call, line)
                self._num_calls += 1
                _HEADER.pack_into(self._ring, 0, _MAGIC, self._num_calls)

    def _add(self, known_by: Hashable, what: Group | Call | Line) -> int:
        with self._lock:
            if isinstance(what, Call) and what not in self._numbers and self._counts.get(Call, 0) >= _MOST_NAMES:
                what = what._replace(shape=None)
            number = self._numbers.get(what)
            if number is None:
                number = self._counts.get(type(what), 0)
                with self._names_path.open("rb+") as file:
                    file.seek(0, os.SEEK_END)
                    file.write(json.dumps([type(what).__name__, *what]).encode() + b"\n")
                self._numbers[what], self._counts[type(what)] = number, number + 1
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[known_by] = number
        return number

    def _close(self) -> None:
        """Note nothing more, in a process that was forked: the ring is that of its parent."""
        self._lock = threading.Lock()  # another thread may have held it
        self._is_closed = True


class CallReader:
    """Follows the log of another process. ``path``: of the log."""

    def __init__(self, path: Path) -> None:
        self._path, self._names_path = path, path.with_suffix(".names")
        self._num_read = self._names_bytes = 0
        self._names: dict[str, list[Any]] = {Group.__name__: [], Call.__name__: [], Line.__name__: []}

    def read(self) -> list[LoggedCall]:
        """The calls that were logged since the last time, in order, but for the oldest of more than the log holds."""
        try:
            with self._path.open("rb") as file:
                count = _count(file.read(_HEADER.size))
                first = max(self._num_read, count - _RING + _AHEAD)
                spans = _spans(first, count)
                data = b"".join(os.pread(file.fileno(), size, at) for at, size in spans)
                newest = _count(os.pread(file.fileno(), _HEADER.size, 0))
        except OSError:
            return []
        intact = max(first, newest - _RING + _AHEAD)  # what was not overwritten while it was read
        self._num_read = count
        self._read_names()
        groups, calls, lines = (self._names[each.__name__] for each in (Group, Call, Line))
        entries = list(_ENTRY.iter_unpack(data))[intact - first :]
        return [
            LoggedCall(groups[group], place, number, calls[call], lines[line])
            for group, place, number, call, line in entries
        ]

    def _read_names(self) -> None:
        with self._names_path.open("rb") as file:
            file.seek(self._names_bytes)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._names_bytes += len(data)
        for name in data.splitlines():
            kind, *fields = json.loads(name)
            self._names[kind].append(_TYPES[kind](*(tuple(each) if isinstance(each, list) else each for each in fields)))


_TYPES: dict[str, Callable[..., Any]] = {"Group": Group, "Call": Call, "Line": Line}


def _count(header: bytes) -> int:
    magic, count = _HEADER.unpack(header) if len(header) == _HEADER.size else (b"", 0)
    return int(count) if magic == _MAGIC else 0


def _spans(first: int, end: int) -> Sequence[tuple[int, int]]:
    """Where in the file these calls are: offset and size in bytes."""
    begin, count = first % _RING, end - first
    parts = [(begin, min(count, _RING - begin)), (0, count - (_RING - begin))]
    return [(_HEADER.size + at * _ENTRY.size, size * _ENTRY.size) for at, size in parts if size > 0]
