"""Files that are written atomically: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

UNFINISHED = f".*.{'[0-9a-f]' * 8}.new"
"""What an atomic write leaves behind if its process is killed: a pattern for names beside the file."""


def write_atomic(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Write a file so that readers find either what was there before or all of this, also if this process is killed.

    Args:
        path: of the file; one that is there is replaced.
        content: what goes into it; text as UTF-8.
        durable: bring the content to the disk before the file has its name, so that it is whole after a power failure too.
            (Which of the two is found then is settled by ``flush`` of the directory.)
        mode: its permissions, less those of the umask.

    Raises:
        OSError: it could not be written. What was there before still is.
    """
    data = content.encode() if isinstance(content, str) else content
    # Never opened if it exists, be it a link of somebody else's: processes that write the same file do not meet in it either.
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)  # noqa: PTH105 - the atomic one, by its usual name
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def flush(path: Path) -> None:
    """Have the kernel bring a file, or the names in a directory, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
