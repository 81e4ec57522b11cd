"""Ctrl-C and its like, as events of a loop instead of exceptions anywhere."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, the given signals are noted in ``received``, and ``fileno()`` becomes readable.

    A signal that this process was told to ignore (``nohup``, a background job) stays ignored. Outside the main thread,
    where Python can set no handler, nothing is caught.
    """

    def __init__(self, signals: Sequence[signal.Signals] = STOPPING) -> None:
        self.received: list[int] = []
        self._signals = signals
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def fileno(self) -> int:
        """For selectors."""
        return self._read_fd

    def clear(self) -> None:
        """Make ``fileno()`` wait for the next signal."""
        os.read(self._read_fd, 4096)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")
