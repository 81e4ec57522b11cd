"""Files that are written atomically: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lockstep._base.nofollow import directory, open_in

UNFINISHED = f".*.{'[0-9a-f]' * 8}.new"
"""What an atomic write leaves behind if its process is killed: a pattern for names beside the
file."""


def write_atomic(
    path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666, within: Path | None = None
) -> None:
    """Write a file so that readers find either its previous or its complete new content, even if
    this process is killed.

    Args:
        path: the file, replaced if it exists.
        content: its new content; text is encoded as UTF-8.
        durable: flush the content to disk before the file gets its name, so that it is complete
            after a power failure too. (``flush`` of the directory ensures that the new file is the
            one found then.)
        mode: its permissions, less those of the umask.
        within: a directory above it, below which no directory may be a symbolic link. None: its own
            directory.

    Raises:
        OSError: it could not be written. The previous file is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    # Never opened if it exists, since it may be a link put there by another user; nor do two
    # processes share it.
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    with directory(path.parent, within=within or path.parent) as parent:
        try:
            with os.fdopen(open_in(parent, unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(unfinished.name, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:  # Ctrl-C, too
            with contextlib.suppress(OSError):
                os.unlink(unfinished.name, dir_fd=parent)
            raise


def flush(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
