"""Files that are there whole or not at all: flushed to the disk, put in place by a rename, and known by a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 22


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    unfinished = path.with_name(f".{path.name}.new")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)  # noqa: PTH105


def write_json(path: Path, value: Any) -> bytes:
    """The same for a JSON value. Returns what was written."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_text(path, text)
    return text.encode()


def flush(path: Path) -> None:
    """Have the kernel bring a file, or the names in a directory, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def checksum_of(blocks: Iterable[bytes | memoryview]) -> str:
    """The SHA-256 of what a file of these blocks would hold, in hexadecimal digits."""
    found = hashlib.sha256()
    for block in blocks:
        found.update(block)
    return found.hexdigest()


def checksum(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits; read from the disk where the kernel lets go of its copy.

    Args:
        path: of the file.
        progress: called now and then with the number of bytes read since.
    """
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
            if progress is not None:
                progress(len(block))
    return found.hexdigest()


def copy(source: Path, target: Path, progress: Callable[[int], None] | None = None) -> str:
    """Copy a file to a new one, and bring that to the disk. Returns the checksum of what was copied.

    Args:
        source: what is copied.
        target: a file that does not exist yet.
        progress: called now and then with the number of bytes copied since.
    """
    found = hashlib.sha256()
    with source.open("rb", buffering=0) as reader, target.open("xb") as writer:
        while block := reader.read(_BLOCK_BYTES):
            found.update(block)
            writer.write(block)
            if progress is not None:
                progress(len(block))
        writer.flush()
        os.fsync(writer.fileno())
    return found.hexdigest()
