"""Ctrl-C and other signals as events of a loop, instead of exceptions anywhere."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from lockstep._base import stopping

STOPPING = (signal.SIGINT, signal.SIGHUP, *stopping.SIGNALS)


class Interrupts:
    """A context in which the given signals are recorded in ``received``, and make ``fileno()``
    readable.

    A signal that this process ignores (``nohup``, a background job) stays ignored. Outside the main
    thread, where Python can set no handlers, no signal is caught. Signals count once if they follow
    each other closely: see ``stopping.is_same``.
    """

    def __init__(self, signals: Sequence[signal.Signals] = STOPPING) -> None:
        self.received: list[int] = []
        self.may_save = True
        """Whether a run may be saved before it ends. (Not once other machines are lost.)"""
        self._signals = signals
        self._previous: dict[signal.Signals, Any] = {}
        self._asked_at: float | None = None
        self._read_fd = self._write_fd = -1
        self._is_over = False
        self._lock = threading.Lock()

    def __enter__(self) -> Interrupts:
        with self._lock:
            self._read_fd, self._write_fd = os.pipe()
            # A handler must not wait for room in the pipe: it runs in the thread that would make
            # room.
            os.set_blocking(self._write_fd, False)
            if self.received:  # by ``tell``, before the context was entered
                os.write(self._write_fd, b"!")
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                # None: a handler that Python has not installed, and so could not restore.
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
        """The descriptor for selectors: readable when a signal was received."""
        return self._read_fd

    def clear(self) -> None:
        """Makes ``fileno()`` wait for the next signal."""
        os.read(self._read_fd, 4096)

    def tell(self, number: int) -> None:
        """Acts as if a signal had arrived, unless the context was left. May be called from any
        thread."""
        with self._lock:  # the pipe may be closed, and another file have its descriptor by now
            if not self._is_over:
                self._note(number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is not None and stopping.is_same(number, now - self._asked_at):
            return
        self._asked_at = now
        self.received.append(number)
        if self._write_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._write_fd, b"!")
