"""Files that are written atomically: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lockstep._base.nofollow import directory, open_in

UNFINISHED = f".*.{'[0-9a-f]' * 8}.new"
"""The files that an atomic write leaves behind if its process is killed: a pattern for names in the
file's directory."""


def write_atomic(
    path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666, within: Path | None = None
) -> None:
    """Writes a file so that readers find either its previous or its complete new content, even if
    this process is killed.

    Args:
        path: the file, replaced if it exists.
        content: its new content; text is encoded as UTF-8.
        durable: flush the content to disk before the file gets its name, so that it is also
            complete after a power failure. (``flush`` of the directory makes the new name durable.)
        mode: its permissions, before the umask.
        within: a parent directory, below which no directory may be a symbolic link. None: the
            file's directory.

    Raises:
        OSError: it could not be written. The previous file is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    # O_EXCL: the name may exist as a link of another user. Random: two processes do not share it.
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    with directory(path.parent, within=within or path.parent) as parent:
        try:
            with os.fdopen(open_in(parent, unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            # Both names are in one directory, so in one file system: only there a rename is atomic.
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
