"""Who holds the lock of a file that a process waits for, from the kernel's table of locks. (Linux, one machine.)"""

from __future__ import annotations

import contextlib
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_LINE = re.compile(r"^(\d+):\s+(->\s+)?(FLOCK|POSIX|OFDLCK)\s+\w+\s+\w+\s+(-?\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)", re.MULTILINE)
"""A lock, or with an arrow one that waits for it: its number, how and by which process (-1: unknown) it is requested, inode."""
_PACKAGE = "/filelock/"
_HOW = {"FLOCK": "flock", "POSIX": "lockf", "OFDLCK": "fcntl"}
_MOST_OF_COMMAND = 60
_MOST_CALLERS = 6


def polled_file(thread_id: int) -> str:
    """The file whose lock a thread of this process requests again and again, by the package filelock, which keeps it closed
    meanwhile; empty: it does not."""
    frame = sys._current_frames().get(thread_id)
    for _ in range(_MOST_CALLERS):
        if frame is None:
            break
        if frame.f_code.co_name == "acquire" and _PACKAGE in frame.f_code.co_filename:
            with contextlib.suppress(Exception):
                return str(Path(frame.f_locals["self"].lock_file).absolute())
        frame = frame.f_back
    return ""


def awaited_locks(pid: int, polled: str, ranks: Mapping[int, int]) -> list[tuple[str, int | None]]:
    """The locked files that keep a process of this machine waiting: in a line each, who holds it; and that one's rank, if it is
    one of ``ranks``.

    Args:
        pid: of a process that does not move.
        polled: what ``polled_file`` is there.
        ranks: by process id.
    """
    try:
        text = Path("/proc/locks").read_text()
    except OSError:
        return []
    waited, held = set(), []
    for number, waits, how, holder, inode in _LINE.findall(text):
        if not waits:
            held.append((number, _HOW[how], int(holder), int(inode)))
        elif int(holder) == pid:
            waited.add(number)
    files = dict(_open_files(pid))
    if polled:
        with contextlib.suppress(OSError):
            files[Path(polled).stat().st_ino] = polled
    return [
        (
            f"it waits for the lock of {files.get(inode, f'a file (inode {inode})')} ({how}), which "
            f"{_described(holder, ranks)} holds",
            ranks.get(holder),
        )
        for number, how, holder, inode in held
        if number in waited or (polled and files.get(inode) == polled)
    ]


def _described(pid: int, ranks: Mapping[int, int]) -> str:
    if pid in ranks:
        return f"rank {ranks[pid]} (pid {pid})"
    command = ""
    with contextlib.suppress(OSError):
        command = shlex.join(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0"))
    return f"process {pid} (`{command[:_MOST_OF_COMMAND]}`)"


def _open_files(pid: int) -> Iterator[tuple[int, str]]:
    """The regular files that a process has open: inode and path."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if stat.S_ISREG((status := link.stat()).st_mode):
                    yield status.st_ino, str(link.readlink())
