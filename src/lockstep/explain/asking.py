"""Asks a process for its stack with signals: the one way to one that does not report by itself.

The first is answered by Python, between two instructions of the interpreter. Who does not answer it is in C code, and gets the
second: ``faulthandler`` answers it from the signal's handler itself, without the interpreter lock. The order matters: it walks
frames that nothing protects, and a process that runs Python code at the time has been seen to crash (CPython 3.11: once in
100 times with the stacks of all threads, once in 60,000 with that of one).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep.explain.frames import Frame, stack_of
from lockstep.stopping import catches

SIGNAL = signal.SIGRTMAX - 3
"""Nobody else has a use for it; to one that does not catch it, it is deadly, so it is sent to no such process."""
IN_C_SIGNAL = signal.SIGRTMAX - 4
"""The second: the same."""
_WAIT_S, _IN_C_WAIT_S = 1.0, 2.0
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')

_CLOCK_S = 1.0
"""When a process was made is known to a tick of the kernel's clock only."""


class Answering:
    """Has this process write the stack of its main thread into a file when it is asked, until it is closed. One at a time.

    Processes that it forks answer as well, into the same file. Made by another thread it never answers: Python lets only the
    main thread handle signals.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._file = os.fstat(self._fd)
        self._answers = threading.current_thread() is threading.main_thread()
        if self._answers:
            signal.signal(SIGNAL, self._answer)
            if signal.getsignal(IN_C_SIGNAL) is signal.SIG_DFL:
                signal.signal(IN_C_SIGNAL, signal.SIG_IGN)  # what ``close`` goes back to
            faulthandler.register(IN_C_SIGNAL, file=self._fd, all_threads=False)

    def _answer(self, _: int, frame: FrameType | None) -> None:
        if self._answers:
            with contextlib.suppress(OSError):
                os.write(self._fd, f"{json.dumps({'pid': os.getpid(), 'stack': stack_of(frame)})}\n".encode())

    def where(self) -> dict[str, Any]:
        """For ``ask``. Empty if it never answers, or once the script has a handler of its own for a signal: it is not to be
        called by us."""
        in_c = signal.getsignal(IN_C_SIGNAL)
        if not self._answers or signal.getsignal(SIGNAL) != self._answer or in_c not in (signal.SIG_IGN, signal.SIG_DFL):
            return {}
        return {"stack_file": str(self.path), "stack_fd": self._fd}

    def close(self) -> None:
        """Write no more: before the file is closed, whose number may be another file's next."""
        if self._answers:
            self._answers = False
            faulthandler.unregister(IN_C_SIGNAL)
            if threading.current_thread() is threading.main_thread() and signal.getsignal(SIGNAL) == self._answer:
                signal.signal(SIGNAL, signal.SIG_IGN)  # one that comes late must not be deadly
        with contextlib.suppress(OSError):  # a script may have closed all files, and opened its own under this number
            if os.path.samestat(os.fstat(self._fd), self._file):
                os.close(self._fd)


def can_answer(record: Mapping[str, Any], pid: int) -> bool:
    """Whether a process still catches the signals and has the file open that it is to write to.

    Not so one that has put another program in its place, or whose script has closed all files.
    """
    try:
        there = os.path.samestat(Path(f"/proc/{pid}/fd/{record['stack_fd']}").stat(), Path(record["stack_file"]).stat())
    except (OSError, KeyError):
        return False
    return there and catches(pid, SIGNAL) and catches(pid, IN_C_SIGNAL)


def ask(record: Mapping[str, Any]) -> list[Frame] | None:
    """The frames of the training thread, innermost first, of a process of this machine, from its record.

    None: it does not answer (it is stopped, or the kernel holds it), or it is not its main thread that trains.
    """
    return ask_for(record, int(record["pid"]))


def ask_for(record: Mapping[str, Any], pid: int) -> list[Frame] | None:
    """The same of that process, or of one that it has forked."""
    if not can_answer(record, pid):
        return None
    path = Path(record["stack_file"])
    with contextlib.suppress(OSError):
        begin = path.stat().st_size
        os.kill(pid, SIGNAL)
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            time.sleep(0.02)
            for answer in _answers(path, begin):
                if answer["pid"] == pid:
                    return [(str(file), int(line), str(name)) for file, line, name in answer["stack"]]
        begin = path.stat().st_size
        os.kill(pid, IN_C_SIGNAL)
        deadline = time.monotonic() + _IN_C_WAIT_S
        size = begin
        while time.monotonic() < deadline:
            time.sleep(0.05)
            last, size = size, path.stat().st_size
            if size == last > begin:
                return _parse(_read(path, begin))
    return None


def _read(path: Path, begin: int) -> str:
    return path.read_bytes()[begin:].decode(errors="replace")


def _answers(path: Path, begin: int) -> list[dict[str, Any]]:
    """Those to the first signal; several processes may have been asked, by several others."""
    answers = []
    for line in _read(path, begin).splitlines():
        with contextlib.suppress(ValueError):
            answers.append(json.loads(line))
    return [answer for answer in answers if isinstance(answer, dict)]


def _parse(text: str) -> list[Frame]:
    """The frames of the first answer to the second signal: several may have asked."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if frame := _FRAME.match(line):
            frames.append((frame[1], int(frame[2]), frame[3]))
        elif frames:
            break
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
