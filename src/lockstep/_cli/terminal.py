"""Output width, and handling of SIGTERM, for commands that start runs."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from lockstep._base.escape_control import escape_control

_PLAIN_WIDTH = 140  # columns, where the output is not a terminal


class _PlainConsole(Console):
    """A console that escapes control characters in text, and leaves control of the terminal to
    styles and layouts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_ours = segment.control is not None or segment.text.isprintable()
            yield segment if is_ours else segment._replace(text=escape_control(segment.text, has_lines=True))


def open_console(*, quiet: bool = False) -> Console:
    """A console on standard output, wide if that is not a terminal."""
    console = _PlainConsole(quiet=quiet)
    return console if console.is_terminal else _PlainConsole(quiet=quiet, width=_PLAIN_WIDTH)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """Treat SIGTERM (from a batch system) like Ctrl-C: the current run is stopped, and the results
    so far are written.

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
