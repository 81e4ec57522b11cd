"""Requests a process's stack by signal: the only way to get it from a process that does not report by itself.

The first signal is handled by Python, between two bytecode instructions. A process that does not answer it is in C code, and is
sent the second, which ``faulthandler`` handles without the interpreter lock. The order matters: ``faulthandler`` walks frames
that nothing protects, and processes that were running Python code at that moment have been seen to crash (CPython 3.11: once
in 100 requests for the stacks of all threads, once in 60,000 for that of one).
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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep.base.regular import open_to_write
from lockstep.base.stopping import catches
from lockstep.base.tracebacks.frames import Frame
from lockstep.tools.explain.frames import stack_of

SIGNAL = signal.SIGRTMAX - 3
"""Used by nothing else. It kills a process that does not handle it, and is therefore never sent to one."""
IN_C_SIGNAL = signal.SIGRTMAX - 4
"""The second signal; the same applies."""
_WAIT_S, _IN_C_WAIT_S = 1.0, 2.0
_POLL_S = 0.02
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class StackResponder:
    """Lets this process answer requests, until it is closed, by writing its main thread's stack to a file. One at a time.

    Forked processes answer too, into the same file. A responder created outside the main thread never answers, since Python
    handles signals in the main thread only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._fd = open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._file = os.fstat(self._fd)
        self._answers = threading.current_thread() is threading.main_thread()
        if self._answers:
            signal.signal(SIGNAL, self._answer)
            # C code that waits in a system call may take it for a failure if that is interrupted.
            signal.siginterrupt(SIGNAL, False)
            if signal.getsignal(IN_C_SIGNAL) is signal.SIG_DFL:
                signal.signal(IN_C_SIGNAL, signal.SIG_IGN)  # what ``unregister`` restores
            faulthandler.register(IN_C_SIGNAL, file=self._fd, all_threads=False)

    def _answer(self, _: int, frame: FrameType | None) -> None:
        if self._answers:
            with contextlib.suppress(OSError):
                os.write(self._fd, f"{json.dumps({'pid': os.getpid(), 'stack': stack_of(frame)})}\n".encode())

    def where(self) -> dict[str, Any]:
        """The fields of a black box's record that ``request_stack`` needs. Empty if this process cannot answer, for example
        because the script has installed its own handler for one of the signals, which must not be triggered."""
        in_c = signal.getsignal(IN_C_SIGNAL)
        if not self._answers or signal.getsignal(SIGNAL) != self._answer or in_c not in (signal.SIG_IGN, signal.SIG_DFL):
            return {}
        return {"stack_file": str(self.path), "stack_fd": self._fd}

    def close(self) -> None:
        """Stop answering, then close the file: its descriptor may be reused for another file."""
        if self._answers:
            self._answers = False
            faulthandler.unregister(IN_C_SIGNAL)
            if threading.current_thread() is threading.main_thread() and signal.getsignal(SIGNAL) == self._answer:
                signal.signal(SIGNAL, signal.SIG_IGN)  # a late request must not kill the process
        with contextlib.suppress(OSError):  # the script may have closed all files and reused this descriptor
            if os.path.samestat(os.fstat(self._fd), self._file):
                os.close(self._fd)


def can_answer(record: Mapping[str, Any], pid: int) -> bool:
    """Whether a process handles both signals and still has the answer file open.

    This does not hold after ``exec``, or if the script has closed all files.
    """
    try:
        is_open = os.path.samestat(Path(f"/proc/{pid}/fd/{record['stack_fd']}").stat(), Path(record["stack_file"]).stat())
    except (OSError, KeyError):
        return False
    return is_open and catches(pid, SIGNAL) and catches(pid, IN_C_SIGNAL)


def request_stack(record: Mapping[str, Any], pid: int | None = None) -> list[Frame] | None:
    """The stack of the main thread of a process on this machine, innermost frame first. Blocks for up to 3 s.

    Args:
        record: from the process's black box.
        pid: of a process that it has forked; None: the process itself.

    Returns:
        None if there is no answer: the process is stopped, is blocked in the kernel, or does not train in its main thread.
    """
    pid = int(record["pid"]) if pid is None else pid
    if not can_answer(record, pid):
        return None
    requests: tuple[tuple[int, float, Callable[[str], list[Frame]]], ...] = (
        (SIGNAL, _WAIT_S, partial(_parse_answer, pid=pid)),
        (IN_C_SIGNAL, _IN_C_WAIT_S, _parse_faulthandler),
    )
    path = Path(record["stack_file"])
    with contextlib.suppress(OSError):
        for number, wait_s, parse in requests:
            begin, text = path.stat().st_size, ""
            os.kill(pid, number)
            deadline = time.monotonic() + wait_s
            while time.monotonic() < deadline:
                time.sleep(_POLL_S)
                before, text = text, path.read_bytes()[begin:].decode(errors="replace")
                if text == before and (frames := parse(text)):  # the answer is complete
                    return frames
    return None


def _parse_answer(text: str, pid: int) -> list[Frame]:
    """The stack in this process's answer to the first signal; other processes may have answered into the same file."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and answer.get("pid") == pid:
                return [(str(file), int(line_number), str(name)) for file, line_number, name in answer["stack"]]
    return []


def _parse_faulthandler(text: str) -> list[Frame]:
    """The stack in the first answer to the second signal."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if frame := _FRAME.match(line):
            frames.append((frame[1], int(frame[2]), frame[3]))
        elif frames:
            break
    return frames
