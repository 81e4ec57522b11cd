"""A file of fixed size with what a process is doing, which outlives the process.

::

    rank-0.box   | slot 0: magic, number 41, length, CRC, JSON | slot 1: magic, number 42, ... |
                   ^ the next record (43) goes here              ^ the newest complete one

Records alternate between two slots, so a reader finds a complete one at any moment: a torn write
has a wrong CRC, and the other slot is the record before. A record is passed to the kernel as it is
written, so it survives a SIGKILL in the next moment.

The file is not memory-mapped: on a full disk, or after the file was truncated, a write to a mapping
kills the process by SIGBUS. It is not kept open: a script may close all files, as daemons do, and
another file may get the descriptor.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep._base.nofollow import make_directory, open_to_write
from lockstep._base.regular_files import open_to_read
from lockstep._base.shapes import parse

DIRECTORY = "blackbox"
SLOT_BYTES = 1 << 15
_HEADER = struct.Struct("<8sQII")
"""A magic number, the number of the record, its length in bytes, and its CRC-32."""
_MAGIC = b"lckstp1\n"
_LAST = 1 << 62
"""The number of a record that comes after any other: no process writes so many."""


def in_slot(record: Mapping[str, Any], number: int, slot_bytes: int) -> bytes:
    """The content of a slot: a record, the ``number``-th of its box, with its checksum.

    Raises:
        ValueError: it is too long.
    """
    data, most_bytes = json.dumps(record).encode(), slot_bytes - _HEADER.size
    if len(data) > most_bytes:
        raise ValueError(f"a record of {len(data)} bytes does not fit into {most_bytes}")
    return _HEADER.pack(_MAGIC, number, len(data), zlib.crc32(data)) + data


def newest_in(content: bytes, slot_bytes: int) -> dict[str, Any] | None:
    """The newest record of two slots; None: there is none."""
    records: dict[int, bytes] = {}
    for slot in (content[:slot_bytes], content[slot_bytes : 2 * slot_bytes]):
        if len(slot) == slot_bytes:
            magic, number, length, checksum = _HEADER.unpack_from(slot)
            data = slot[_HEADER.size : _HEADER.size + length]
            if magic == _MAGIC and zlib.crc32(data) == checksum:
                records[number] = data
    if not records:
        return None
    with contextlib.suppress(ValueError):
        newest = parse(records[max(records)])
        return newest if isinstance(newest, dict) else None
    return None


def box_path(run_dir: Path, rank: int) -> Path:
    """The path of a rank's black box."""
    return run_dir / DIRECTORY / f"rank-{rank}.box"


class BlackBox:
    """The black box of one process, its only writer while it lives.

    Args:
        path: the file's path (``box_path``).
        is_shared: whether other machines read it: each record is then sent to the file server
            immediately.
        is_over: whether the process has exited, and the one record that is written now comes after
            all records of the process.
    """

    def __init__(self, path: Path, *, is_shared: bool = False, is_over: bool = False) -> None:
        self._path = path.absolute()
        self._place = self._path.parents[1]
        make_directory(self._path.parent, within=self._place)
        self._is_shared = is_shared
        self._number = _LAST if is_over else 0
        if not is_over:
            self._put(bytes(2 * SLOT_BYTES), 0, os.O_CREAT)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record of JSON values over the one before the last.

        Raises:
            OSError: it could not be written; the last one can still be read.
            ValueError: it is too long.
        """
        data, self._number = in_slot(record, self._number + 1, SLOT_BYTES), self._number + 1
        with contextlib.suppress(FileNotFoundError):  # it was removed
            self._put(data, self._number % 2 * SLOT_BYTES)

    def _put(self, data: bytes, offset: int, flags: int = 0) -> None:
        fd = open_to_write(self._path, os.O_WRONLY | flags, 0o644, within=self._place)
        try:
            os.pwrite(fd, data, offset)
            if self._is_shared:
                os.fdatasync(fd)
        finally:
            os.close(fd)


def read_box(path: Path) -> dict[str, Any] | None:
    """The newest record of a black box; None: there is none."""
    try:
        with open_to_read(path) as file:
            content = file.read(2 * SLOT_BYTES)
    except OSError:
        return None
    return newest_in(content, SLOT_BYTES)


def note_status(private_dir: Path, rank: int, status: int) -> None:
    """Add to the black boxes of a process that has exited its exit status, or minus the signal.

    Args:
        private_dir: the launch's private directory.
        rank: the rank of the process.

    Raises:
        OSError: one could not be written.
    """
    path = box_path(private_dir, rank)
    while (record := read_box(path)) is not None:
        BlackBox(path, is_over=True).write({**record, "status": status})
        if "joined" not in record:
            return
        path = Path(record["joined"])
