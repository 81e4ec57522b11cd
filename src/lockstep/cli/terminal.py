"""Output width, and handling of SIGTERM, for commands that start runs."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterator

from rich.console import Console

_PLAIN_WIDTH = 140  # columns, where the output is not a terminal


def open_console() -> Console:
    """A console on standard output, wide if that is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """Treat SIGTERM (from a batch system) like Ctrl-C: the current run is stopped, and the results so far are written.

    Yields a list to which received signals are appended.
    """
    received: list[int] = []

    def interrupt(signum: int, frame: types.FrameType | None) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)
