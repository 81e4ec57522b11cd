"""Which process holds the file lock that another one waits for, from the kernel's table of locks.
(Linux, one machine.)"""

from __future__ import annotations

import contextlib
import re
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FLOCK = "flock"
_LINE = re.compile(r"^(\d+):\s+(->\s+)?(FLOCK|POSIX|OFDLCK)\s+\w+\s+\w+\s+(-?\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)", re.MULTILINE)
"""A lock, or with an arrow one that waits for it: its number, how and by which process (-1:
unknown) it is requested, inode."""
_PACKAGE = "/filelock/"
_MOST_OF_COMMAND = 60
_MOST_CALLERS = 6


class FileLock(NamedTuple):
    """The lock of a file that keeps a process waiting."""

    file: str
    """The path of the file; empty: unknown."""
    holder: int
    """The process with the lock; -1: unknown."""
    command: str
    """The command of that process; empty: unknown."""


def polled_file(thread_id: int) -> str:
    """The file whose lock a thread of this process requests again and again, by the package
    filelock, which keeps it closed meanwhile; empty: it does not."""
    frame = sys._current_frames().get(thread_id)
    for _ in range(_MOST_CALLERS):
        if frame is None:
            break
        if frame.f_code.co_name == "acquire" and _PACKAGE in frame.f_code.co_filename:
            with contextlib.suppress(Exception):
                return str(Path(frame.f_locals["self"].lock_file).absolute())
        frame = frame.f_back
    return ""


def awaited_lock(pid: int, polled: str) -> FileLock | None:
    """The lock for which a process of this machine waits, one that does not move; None: it waits
    for none.

    ``polled``: what ``polled_file`` is there.
    """
    try:
        text = Path("/proc/locks").read_text()
    except OSError:
        return None
    waited, held = set(), []
    for number, waits, _, holder, inode in _LINE.findall(text):
        if not waits:
            held.append((number, int(holder), int(inode)))
        elif int(holder) == pid:
            waited.add(number)
    if not waited and not polled:
        return None
    files = dict(_open_files(pid)) if waited else {}
    if polled:
        with contextlib.suppress(OSError):
            files[Path(polled).stat().st_ino] = polled
    return next(
        (
            FileLock(files.get(inode, ""), holder, _command_of(holder))
            for number, holder, inode in held
            if holder != pid and (number in waited or (polled and files.get(inode) == polled))
        ),
        None,
    )


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path("/proc", str(pid), "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        return shlex.join(words)[:_MOST_OF_COMMAND]
    return ""


def _open_files(pid: int) -> Iterator[tuple[int, str]]:
    """The regular files that a process has open: inode and path."""
    with contextlib.suppress(OSError):
        for link in Path("/proc", str(pid), "fd").iterdir():
            with contextlib.suppress(OSError):
                if stat.S_ISREG((status := link.stat()).st_mode):
                    yield status.st_ino, str(link.readlink())
