"""Opens files for reading that other users may have placed: files of a run directory, and files
that a user names.

Only regular files of bounded size are read, so that no FIFO, device or sparse file blocks the
reader or fills its memory. The path may go through symbolic links. (``nofollow`` opens files for
writing.)"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lockstep._base.errors import UnfitFileError

MOST_BYTES = 1 << 28
"""The largest file that is read as a whole, in bytes."""
MOST_LINES_BYTES = 1 << 34
"""The largest file that is read line by line, in bytes: an event log of a hundred million steps."""
MOST_LINE_BYTES = 1 << 26
_BLOCK_BYTES = 1 << 20


def open_to_read(path: Path, most_bytes: int | None = None) -> io.FileIO:
    """Opens a regular file, unbuffered.

    Raises:
        OSError: it is missing, cannot be opened, is not a regular file, or has more than
            ``most_bytes``.
    """
    size_of(path)  # first, because opening a device may have side effects
    # O_NONBLOCK: a FIFO that has replaced the file since would block until it has a writer.
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    try:
        _size(os.fstat(file.fileno()), path, most_bytes)  # again, because it may have been replaced
    except OSError:
        file.close()
        raise
    return file


def size_of(path: Path, most_bytes: int | None = None) -> int:
    """Returns the size of a regular file in bytes. Call it before a library opens the file by its
    path.

    Raises:
        OSError: it is missing, is not a regular file, or has more than ``most_bytes``.
    """
    try:
        found = path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnfitFileError(errno.ELOOP, "it is a symbolic link that leads in a circle", str(path)) from error
        raise
    return _size(found, path, most_bytes)


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it cannot be read, is something else, or has more than ``most_bytes``.
    """
    with io.BufferedReader(open_to_read(path, most_bytes)) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a regular file, with their ends; of a line of more than ``MOST_LINE_BYTES``, the
    beginning.

    Raises:
        OSError: it cannot be read, is something else, or has more than ``MOST_LINES_BYTES``.
    """
    with io.BufferedReader(open_to_read(path, MOST_LINES_BYTES)) as file:
        while line := file.readline(MOST_LINE_BYTES):
            yield line
            # The rest of a line that is too long is dropped in blocks, so that memory stays
            # bounded.
            while not line.endswith(b"\n") and (line := file.readline(_BLOCK_BYTES)):
                pass


def _size(found: os.stat_result, path: Path, most_bytes: int | None) -> int:
    if not stat.S_ISREG(found.st_mode):
        raise UnfitFileError(errno.EINVAL, f"it is {kind_of(found)}, and must be a regular file", str(path))
    if most_bytes is not None and found.st_size > most_bytes:
        raise UnfitFileError(errno.EFBIG, f"it has {found.st_size} bytes, and at most {most_bytes} are read", str(path))
    return found.st_size


def kind_of(found: os.stat_result) -> str:
    """Returns a description of the file at a path."""
    kinds = {
        stat.S_ISREG: "a file",
        stat.S_ISLNK: "a symbolic link",
        stat.S_ISDIR: "a directory",
        stat.S_ISFIFO: "a FIFO",
        stat.S_ISSOCK: "a socket",
    }
    return next((words for is_it, words in kinds.items() if is_it(found.st_mode)), "a device")
