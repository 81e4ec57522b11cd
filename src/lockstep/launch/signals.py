"""Ctrl-C and its like, as events of a loop instead of exceptions anywhere."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from lockstep import stopping

STOPPING = (signal.SIGINT, signal.SIGHUP, *stopping.SIGNALS)


class Interrupts:
    """While entered, the given signals are noted in ``received``, and ``fileno()`` becomes readable.

    A signal that this process was told to ignore (``nohup``, a background job) stays ignored. Outside the main thread,
    where Python can set no handler, nothing is caught. Signals that ask a run to stop count once if they follow each other
    closely: see ``stopping.SAME_S``.
    """

    def __init__(self, signals: Sequence[signal.Signals] = STOPPING) -> None:
        self.received: list[int] = []
        self._signals = signals
        self._previous: dict[signal.Signals, Any] = {}
        self._asked_at: float | None = None
        self._read_fd = self._write_fd = -1
        self._is_over = False
        self._lock = threading.Lock()

    def __enter__(self) -> Interrupts:
        with self._lock:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._write_fd, False)
            if self.received:  # told before it was entered
                os.write(self._write_fd, b"!")
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        with self._lock:
            self._is_over = True
            os.close(self._read_fd)
            os.close(self._write_fd)

    def fileno(self) -> int:
        """For selectors."""
        return self._read_fd

    def clear(self) -> None:
        """Make ``fileno()`` wait for the next signal."""
        os.read(self._read_fd, 4096)

    def forget(self) -> None:
        """What has come was for others: the next signal is the first again."""
        self.received.clear()
        self._asked_at = None

    def tell(self, number: int) -> None:
        """Have it look as if the signal had come, unless it has been left. From any thread."""
        with self._lock:  # else what is written might go into a file that has the pipe's number by now
            if not self._is_over:
                self._note(number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in stopping.SIGNALS:
            now = time.monotonic()
            if self._asked_at is not None and now - self._asked_at <= stopping.SAME_S:
                return
            self._asked_at = now
        self.received.append(number)
        if self._write_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._write_fd, b"!")
