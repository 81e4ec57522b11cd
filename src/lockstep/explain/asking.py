"""Asks a process for its stack with a signal: the one way to one whose interpreter does not answer.

``faulthandler`` writes it from the signal's handler, without the interpreter lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.stopping import catches

SIGNAL = signal.SIGRTMAX - 3
"""Nobody else has a use for it; to one that does not catch it, it is deadly, so it is sent to no such process."""
_WAIT_S = 2.0
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')

_CLOCK_S = 1.0
"""When a process was made is known to a tick of the kernel's clock only."""


class Answering:
    """Has this process write its stacks into a file when it is asked, until it is closed. One at a time.

    Processes that it forks answer as well, into the same file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._file = os.fstat(self._fd)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(SIGNAL) is signal.SIG_DFL:
            signal.signal(SIGNAL, signal.SIG_IGN)  # what ``close`` goes back to: one that comes late must not be deadly
        faulthandler.register(SIGNAL, file=self._fd, all_threads=True)

    def where(self) -> dict[str, Any]:
        """For ``ask``. Empty once the script has a handler of its own for the signal: it is not to be called by us."""
        if signal.getsignal(SIGNAL) not in (signal.SIG_IGN, signal.SIG_DFL):
            return {}
        return {"stack_file": str(self.path), "stack_fd": self._fd}

    def close(self) -> None:
        """Write no more: before the file is closed, whose number may be another file's next."""
        faulthandler.unregister(SIGNAL)
        with contextlib.suppress(OSError):  # a script may have closed all files, and opened its own under this number
            if os.path.samestat(os.fstat(self._fd), self._file):
                os.close(self._fd)


def can_answer(record: Mapping[str, Any], pid: int) -> bool:
    """Whether a process still catches the signal and has the file open that it is to write to.

    Not so one that has put another program in its place, or whose script has closed all files.
    """
    try:
        there = os.path.samestat(Path(f"/proc/{pid}/fd/{record['stack_fd']}").stat(), Path(record["stack_file"]).stat())
    except (OSError, KeyError):
        return False
    return there and catches(pid, SIGNAL)


def ask(record: Mapping[str, Any]) -> list[tuple[str, int, str]] | None:
    """The frames of the training thread, innermost first, of a process of this machine, from its record.

    None: it does not answer (it is stopped, or the kernel holds it).
    """
    return ask_for(record, int(record["pid"]))


def ask_for(record: Mapping[str, Any], pid: int) -> list[tuple[str, int, str]] | None:
    """The same of that process, or of one that it has forked."""
    if not can_answer(record, pid):
        return None
    path = Path(record["stack_file"])
    try:
        before = path.stat().st_size
        os.kill(pid, SIGNAL)
        deadline = time.monotonic() + _WAIT_S
        size = before
        while time.monotonic() < deadline:
            time.sleep(0.05)
            last, size = size, path.stat().st_size
            if size == last > before:
                return _parse(path.read_bytes()[before:].decode(errors="replace"), int(record["thread"]))
    except OSError:
        pass
    return None


def _parse(text: str, thread: int) -> list[tuple[str, int, str]]:
    """The frames of a thread, from the first answer: several may have asked."""
    frames: list[tuple[str, int, str]] = []
    is_it = False
    for line in text.splitlines():
        if begins := _THREAD.match(line):
            if frames:
                return frames
            is_it = int(begins[1], 16) == thread
        elif is_it and (frame := _FRAME.match(line)):
            frames.append((frame[1], int(frame[2]), frame[3]))
    return frames


def look_up(pid: int, reported_s: float) -> str:
    """What has become of a process of this machine: ``running``, ``stopped`` or ``gone``.

    Args:
        pid: of the process.
        reported_s: when it last reported, in seconds since 1970: one that was made later is another one.
    """
    import psutil  # only here: it would delay the start of every process

    try:
        process = psutil.Process(pid)
        if process.create_time() > reported_s + _CLOCK_S or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return "gone"
        return "stopped" if process.status() == psutil.STATUS_STOPPED else "running"
    except psutil.Error:
        return "gone"
