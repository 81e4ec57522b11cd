"""What verbs that run other runs share: how wide to print, and what a SIGTERM means."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterator

from rich.console import Console

_PLAIN_WIDTH = 140  # without a terminal (a file, a pipe) nothing limits a line


def open_console() -> Console:
    """The terminal, or a wide page where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """A batch system's SIGTERM ends a row of runs as Ctrl-C does: with the running one stopped and the rest written.

    Yields a list that it will be in.
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
