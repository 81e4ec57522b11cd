"""Who holds the lock of a file that a process waits for, from the kernel's table of locks. (Linux, one machine.)"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^(\d+):\s+(->\s+)?(FLOCK|POSIX|OFDLCK)\s+\w+\s+\w+\s+(-?\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)", re.MULTILINE)
_PACKAGE = "/filelock/"
_HOW = {"FLOCK": "flock", "POSIX": "lockf", "OFDLCK": "fcntl"}
_MOST_OF_COMMAND = 60
_MOST_CALLERS = 6


@dataclass(frozen=True)
class _Entry:
    """One line of the table."""

    number: str
    """Shared by a lock, and those that wait for it."""
    is_waiting: bool
    how: str
    pid: int
    """-1: unknown, as of a lock that belongs to an open file."""
    inode: int


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
    entries = [
        _Entry(number, bool(waits), _HOW[how], int(of), int(inode)) for number, waits, how, of, inode in _LINE.findall(text)
    ]
    waited = {entry.number for entry in entries if entry.is_waiting and entry.pid == pid}
    files = dict(_open_files(pid))
    if polled:
        with contextlib.suppress(OSError):
            files[Path(polled).stat().st_ino] = polled
    if waited:
        held = [entry for entry in entries if entry.number in waited and not entry.is_waiting]
    else:  # it asks again and again, and has the file open
        own = {entry.inode for entry in entries if entry.pid == pid}
        held = [entry for entry in entries if not entry.is_waiting and entry.inode in files.keys() - own]
    found: dict[str, int | None] = {}
    for entry in held:
        file = files.get(entry.inode, f"a file (inode {entry.inode})")
        what = f"waits for the lock of {file}" if waited or file == polled else f"has a locked file open, {file}"
        found[f"it {what} ({entry.how}), {_held_by(entry, pid, ranks)}"] = ranks.get(entry.pid)
    return list(found.items())


def _held_by(entry: _Entry, waiting: int, ranks: Mapping[int, int]) -> str:
    if Path(f"/proc/{entry.pid}").exists():
        return f"which {_described(entry.pid, ranks)} holds"
    # The process that took it is gone, or is not recorded: whoever has inherited the open file holds it.
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if int(path.name) != waiting]
    heirs = [_described(pid, ranks) for pid in pids if entry.inode in dict(_open_files(pid))]
    return f"held by one of those that have it open: {', '.join(heirs)}" if heirs else "held by a process not seen here"


def _described(pid: int, ranks: Mapping[int, int]) -> str:
    if pid in ranks:
        return f"rank {ranks[pid]} (pid {pid})"
    command, session = "", 0
    with contextlib.suppress(OSError):
        command = shlex.join(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0"))
        session = os.getsid(pid)
    if session in ranks:
        return f"process {pid} of rank {ranks[session]}"
    return f"process {pid} (`{command[:_MOST_OF_COMMAND]}`)"


def _open_files(pid: int) -> Iterator[tuple[int, str]]:
    """The regular files that a process has open: inode and path."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if stat.S_ISREG((status := link.stat()).st_mode):
                    yield status.st_ino, str(link.readlink())
