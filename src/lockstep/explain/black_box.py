"""What a rank is doing, in a file of fixed size that outlives it: whoever was killed can still be asked.

What was written is with the kernel, so it is there even if the process gets SIGKILL in the next moment. (It is not mapped
into memory: there a full disk or a file that has vanished would kill the process. And it is not kept open: a script may close
all files, as daemons do, and get the number for one of its own.) The file has two places, written in turn: a reader always
finds one that is whole.
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

SLOT_BYTES = 1 << 14
"""Of each of the two places."""
_HEADER = struct.Struct("<8sQII")
"""A mark, the number of the record, its length, and its checksum."""
_MARK = b"lckstp1\n"
_MOST_BYTES = SLOT_BYTES - _HEADER.size


class BlackBox:
    """The box of one process. Only one may write into it.

    Args:
        path: of the file.
        is_shared: whether other machines read it: then each record is brought to the file's server at once.
    """

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path.absolute()
        self._is_shared = is_shared
        self._number = 0
        self._put(bytes(2 * SLOT_BYTES), 0, os.O_CREAT)

    def write(self, record: Mapping[str, Any]) -> None:
        """Put a record of JSON values in the place of the last but one.

        Raises:
            OSError: it could not be written; the one before can still be read.
            ValueError: it is too long.
        """
        data = json.dumps(record).encode()
        if len(data) > _MOST_BYTES:
            raise ValueError(f"a record of {len(data)} bytes")
        self._number += 1
        header = _HEADER.pack(_MARK, self._number, len(data), zlib.crc32(data))
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it
            self._put(header + data, self._number % 2 * SLOT_BYTES)

    def _put(self, data: bytes, at: int, flags: int = 0) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
        try:
            os.pwrite(fd, data, at)
            if self._is_shared:
                os.fdatasync(fd)
        finally:
            os.close(fd)


def fits(record: Mapping[str, Any]) -> bool:
    """Whether a record of JSON values is short enough for a box."""
    return len(json.dumps(record)) <= _MOST_BYTES


def read_box(path: Path) -> dict[str, Any] | None:
    """The newest record of a box; None: there is none."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    newest: tuple[int, dict[str, Any]] | None = None
    for start in (0, SLOT_BYTES):
        if len(content) < start + SLOT_BYTES:
            continue
        mark, number, length, checksum = _HEADER.unpack_from(content, start)
        data = content[start + _HEADER.size : start + _HEADER.size + length]
        if mark == _MARK and zlib.crc32(data) == checksum and (newest is None or number > newest[0]):
            newest = number, json.loads(data)
    return None if newest is None else newest[1]
