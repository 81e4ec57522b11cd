"""How files in a run directory are opened to be written, which may hold what somebody else has put there."""

from __future__ import annotations

import os
from pathlib import Path


def open_to_write(path: Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a file that is to be written, whose path must not end in a symbolic link: what that leads to would be
    overwritten.

    Args:
        path: the file.
        flags: as for ``os.open``.
        mode: the permissions of a new file, less those of the umask.

    Raises:
        OSError: it is a link, or cannot be opened.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
