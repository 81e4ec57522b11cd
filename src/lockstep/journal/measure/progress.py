"""What rank 0 shows during the run: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from lockstep.base.stopping import note_bar
from lockstep.journal.measure.pass_progress import PassProgress, bar_line, clock, time_left
from lockstep.listener import Listener, Stage

if TYPE_CHECKING:
    from rich.live import Live

_PLAIN_EVERY_S = 10.0


class Display(Protocol):
    """Shows the progress of a pass over the training loader."""

    def begin(self, title: str, num_steps: int | None) -> None:
        """A pass begins."""

    def step(self, done: int) -> None:
        """So many steps of this pass are done. Called after each step, so it must be fast."""

    def values(self, values: Mapping[str, float]) -> None:
        """The latest logged averages."""

    def end(self) -> None:
        """The pass has ended."""


class Lines(Display):
    """A line every few seconds, and one at the end of each pass: for log files."""

    def __init__(self) -> None:
        self._running = False

    @override
    def begin(self, title: str, num_steps: int | None) -> None:
        self._running = True
        self._title = title
        self._of = "" if num_steps is None else f"/{num_steps}"
        self._values = ""
        self._done = 0
        self._began = self._shown = time.monotonic()

    @override
    def step(self, done: int) -> None:
        self._done = done
        now = time.monotonic()
        if now - self._shown >= _PLAIN_EVERY_S:
            self._show(now)

    @override
    def values(self, values: Mapping[str, float]) -> None:
        self._values = "  ".join(_words(values))

    @override
    def end(self) -> None:
        if self._running:
            self._running = False
            if self._done:  # a pass that failed in its first step has no speed
                self._show(time.monotonic())

    def _show(self, now: float) -> None:
        self._shown = now
        rate = self._done / max(now - self._began, 1e-9)
        print(f"{self._title}  step {self._done}{self._of}  {rate:.1f} steps/s  {self._values}".rstrip(), flush=True)


class Bar(Display):
    """A progress bar with the time left. What the program prints meanwhile appears above it.

    Args:
        progress: returns that of the latest pass; None: show no time.
    """

    def __init__(self, progress: Callable[[], PassProgress | None] = lambda: None) -> None:
        self._headway = progress
        self._live: Live | None = None

    @override
    def begin(self, title: str, num_steps: int | None) -> None:
        # Imported here, since it would delay the start of every process by some 50 ms.
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self.end()
        self._title, self._num_steps, self._values = title, num_steps, list[str]()
        self._done, began = 0, time.monotonic()
        self._over_s: float | None = None
        self._elapsed: Callable[[], float] = lambda: time.monotonic() - began
        console = Console(file=sys.stdout, force_terminal=True)

        def render() -> Text:  # called by rich's thread, eight times a second
            return Text.assemble(*self._line(console.width), no_wrap=True, overflow="crop")

        self._live = Live(console=console, refresh_per_second=8, get_renderable=render)
        self._live.start()
        note_bar(is_shown=True)

    @override
    def step(self, done: int) -> None:
        self._done = done

    @override
    def values(self, values: Mapping[str, float]) -> None:
        self._values = _words(values)

    @override
    def end(self) -> None:
        if self._live is not None:
            self._over_s = self._elapsed()
            note_bar(is_shown=False)
            self._live.stop()
            self._live = None

    def _line(self, width: int) -> list[tuple[str, str]]:
        if self._over_s is not None:
            times = [clock(self._over_s)]
        else:
            progress = self._headway()
            times = [] if progress is None else time_left(progress, time.time())
        return bar_line(self._title, self._done, self._num_steps, times, self._values, width)


class ProgressUpdater(Listener):
    """Updates a display."""

    stage = Stage.LATE

    def __init__(self, display: Display) -> None:
        self._display = display
        self._done = 0

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._done = done
        self._display.begin(f"epoch {epoch + 1}" + (f"/{num_epochs}" if num_epochs else ""), num_steps)

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        self._done += 1
        self._display.step(self._done)

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._display.end()


def _words(values: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4g}" for name, value in values.items()]


def choose_display(
    style: str, *, is_main: bool, on_terminal: bool, progress: Callable[[], PassProgress | None] = lambda: None
) -> Display | None:
    """The display for ``RunConfig.progress``, given as ``style``; None: nothing is shown, as on all ranks but rank 0."""
    if not is_main or style == "off":
        return None
    if style == "bar" or (style == "auto" and on_terminal):
        return Bar(progress)
    return Lines()
