"""The files of a checkpoint: writing them durably, reading them back, and their checksums."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep._base.atomic import write_atomic
from lockstep._base.nofollow import open_to_write
from lockstep._base.regular_files import open_to_read

Bytes = NDArray[np.uint8]
"""A flat array of bytes."""

_BLOCK_BYTES = 1 << 22


class Crc32:
    """A CRC-32, with the methods of a hash of ``hashlib``.

    It costs a third of a SHA-256, or less where the processor has no instructions for that. It
    detects all damage within 32 successive bits and all pairs of flipped bits within 512 MB for
    certain, and any other, such as pages that are zeroed, stale or in each other's places, in all
    but one of 4 billion cases. (A sum of words would be as fast as memory, but is the same
    for words in another order, and for half of all pairs of flipped bits of equal significance.)
    It is no protection from intent, and neither is any digest that is stored next to its file.
    """

    def __init__(self) -> None:
        self._value = 0

    def update(self, content: bytes | memoryview) -> None:
        self._value = zlib.crc32(content, self._value)  # releases the GIL

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


_HASHERS: dict[str, Callable[[], Any]] = {"crc32": Crc32, "sha256": hashlib.sha256}


def write_json(path: Path, value: Any, *, within: Path | None = None) -> bytes:
    """Writes a JSON value, atomically and durably. Returns the bytes written. ``within``: the
    directory that no symbolic link on the path may leave (see ``open_to_write``)."""
    # NaN is no JSON: other parsers would reject the file.
    content = (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()
    write_atomic(path, content, durable=True, within=within)
    return content


def write_bytes(path: Path, parts: Iterable[Bytes], *, within: Path | None = None) -> tuple[int, str]:
    """Writes a file and flushes it to disk.

    Args:
        parts: the content, in order.
        within: the directory that no symbolic link on the path may leave.

    Returns:
        The number of bytes, and the CRC-32 of the *intended* content, in hexadecimal digits.
    """
    hasher, size = Crc32(), 0
    with os.fdopen(open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, within=within), "wb") as file:
        # The digest is of the memory, not of the file read back: it also detects a disk that has
        # stored something else.
        for block in _blocks(parts):
            hasher.update(block.data)
            file.write(block.data)
            size += len(block)
        file.flush()
        # Without it, the rename that commits a checkpoint could reach the disk before the content
        # does, and a power failure would leave an empty file under a valid name.
        os.fsync(file.fileno())
    return size, hasher.hexdigest()


def _blocks(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    """Yields the same bytes in blocks of 4 MiB, small enough to stay in the processor's cache while
    they are read twice: for the checksum, and to be written."""
    for part in parts:
        for start in range(0, len(part), _BLOCK_BYTES):
            yield part[start : start + _BLOCK_BYTES]


def checksum(path: Path, kind: str = "crc32") -> str:
    """Returns the checksum of a file's content, in hexadecimal digits. ``kind``: ``crc32`` or
    ``sha256``."""
    hasher = _HASHERS[kind]()
    with open_to_read(path) as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return str(hasher.hexdigest())
