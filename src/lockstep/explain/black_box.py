"""What a rank is doing, in a file of fixed size that outlives it: whoever was killed can still be asked.

The file is mapped into memory, so that what was written is there even if the process gets SIGKILL in the next moment. It has
two places, written in turn: a reader always finds one that is whole.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SLOT_BYTES = 1 << 15
_HEADER = struct.Struct("<8sQII")
"""A mark, the number of the record, its length, and its checksum."""
_MARK = b"lckstp1\n"


class BlackBox:
    """The box of one process. Only one may write into it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, 2 * _SLOT_BYTES)  # on a full disk the write into the memory would kill the process
            self._memory = mmap.mmap(fd, 2 * _SLOT_BYTES)
        finally:
            os.close(fd)
        self._number = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Put a record of JSON values in the place of the last but one. One that is too long is left out."""
        data = json.dumps(record).encode()
        if len(data) > _SLOT_BYTES - _HEADER.size:
            return
        self._number += 1
        start = self._number % 2 * _SLOT_BYTES
        self._memory[start + _HEADER.size : start + _HEADER.size + len(data)] = data
        _HEADER.pack_into(self._memory, start, _MARK, self._number, len(data), zlib.crc32(data))

    def close(self) -> None:
        """Write no more."""
        self._memory.close()


def read_box(path: Path) -> dict[str, Any] | None:
    """The newest record of a box; None: there is none."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    newest: tuple[int, dict[str, Any]] | None = None
    for start in (0, _SLOT_BYTES):
        if len(content) < start + _SLOT_BYTES:
            continue
        mark, number, length, checksum = _HEADER.unpack_from(content, start)
        data = content[start + _HEADER.size : start + _HEADER.size + length]
        if mark == _MARK and zlib.crc32(data) == checksum and (newest is None or number > newest[0]):
            newest = number, json.loads(data)
    return None if newest is None else newest[1]
