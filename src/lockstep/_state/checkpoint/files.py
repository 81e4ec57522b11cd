"""The files of a checkpoint: writing them durably, reading them back, and their checksums."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
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


def write_json(path: Path, value: Any, *, within: Path | None = None) -> bytes:
    """Write a JSON value, atomically and durably. Returns the bytes written. ``within``: see
    ``open_to_write``."""
    content = (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()
    write_atomic(path, content, durable=True, within=within)
    return content


def write_bytes(path: Path, parts: Iterable[Bytes], *, within: Path | None = None) -> tuple[int, str]:
    """Write a file and flush it to disk.

    Args:
        parts: its content, in order.
        within: see ``open_to_write``.

    Returns:
        The number of bytes, and the SHA-256 of what was *to be* written, in hexadecimal digits.
    """
    hasher, size = hashlib.sha256(), 0
    with os.fdopen(open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, within=within), "wb") as file:
        for block in _blocks(parts):
            hasher.update(block.data)
            file.write(block.data)
            size += len(block)
        file.flush()
        os.fsync(file.fileno())
    return size, hasher.hexdigest()


def _blocks(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    """The same in blocks small enough to stay in the processor's cache while they are read
    twice."""
    for part in parts:
        for start in range(0, len(part), _BLOCK_BYTES):
            yield part[start : start + _BLOCK_BYTES]


def checksum(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    hasher = hashlib.sha256()
    with open_to_read(path) as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()
