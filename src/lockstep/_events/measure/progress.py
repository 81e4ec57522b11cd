"""Shows the progress of the run on rank 0: a bar on a terminal, elsewhere a line every few
seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from lockstep._base.escape_control import escape_control
from lockstep._base.stopping import note_bar
from lockstep._events.measure.pass_progress import PassProgress, bar_line, clock, time_left
from lockstep._listener import Listener, Stage

if TYPE_CHECKING:
    from rich.live import Live

_PLAIN_EVERY_S = 10.0


class Display(Listener):
    """A display of the progress of passes over training loaders.

    Args:
        progress: returns the progress of the latest pass. It is updated before this listener is
            notified of a step.
    """

    stage = Stage.LATE

    def __init__(self, progress: Callable[[], PassProgress | None]) -> None:
        self._progress = progress
        self._values: list[str] = []

    def values(self, values: Mapping[str, float]) -> None:
        """The latest logged values."""
        self._values = [f"{escape_control(name)} {value:.4g}" for name, value in values.items()]


class Lines(Display):
    """A line every few seconds, and one at the end of each pass: for log files."""

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._values = []
        self._done_before = done
        self._began_s = self._shown_s = time.monotonic()

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= _PLAIN_EVERY_S:
            self._show(now_s)

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._show(time.monotonic())

    def _show(self, now_s: float) -> None:
        progress = self._progress()
        # A pass that failed in its first step has no speed.
        if progress is None or progress.done == self._done_before:
            return
        self._shown_s = now_s
        of = "" if progress.num_steps is None else f"/{progress.num_steps}"
        rate = (progress.done - self._done_before) / max(now_s - self._began_s, 1e-9)
        values = "  ".join(self._values)
        print(f"{_over_bars()}{progress.title}  step {progress.done}{of}  {rate:.1f} steps/s  {values}".rstrip(), flush=True)


def _shows_bars() -> bool:
    """Returns whether the script draws a bar of tqdm on the terminal now, which another bar would
    overwrite."""
    # The set of live bars is the only private name of tqdm here, and missing with a version that
    # has renamed it.
    bars = list(getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", ()))
    return any(getattr(bar.fp, "isatty", bool)() for bar in bars if hasattr(bar, "fp"))


def _over_bars() -> str:
    """Returns what to write before a line, so that it replaces the script's bar, which is redrawn
    below."""
    return "\r\x1b[2K" if os.isatty(1) and _shows_bars() else ""


class Bar(Display):
    """A progress bar with the time left. Output of the program appears above it. If the script
    draws progress bars itself, lines are printed instead."""

    _live: Live | None = None
    _lines: Lines | None = None
    """The lines for this pass, if the script draws bars."""
    _took_s: float | None = None
    """The duration of the pass, once it has finished."""

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        # Imported here, since it would delay the start of every process by some 50 ms.
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._stop()
        self._values = []
        self._lines = Lines(self._progress) if _shows_bars() else None
        if self._lines is not None:
            self._lines.begin_pass(epoch, num_epochs, num_steps, done)
            note_bar(is_shown=True)
            return
        self._began_s, self._took_s = time.monotonic(), None
        # Forced, since `--progress bar` asks for a bar also where standard output is no terminal.
        console = Console(file=sys.stdout, force_terminal=True)

        def render() -> Text:  # called by rich's thread, eight times a second
            return Text.assemble(*self._line(console.width), no_wrap=True, overflow="crop")

        self._live = Live(console=console, refresh_per_second=8, get_renderable=render)
        self._live.start()
        note_bar(is_shown=True)

    @override
    def values(self, values: Mapping[str, float]) -> None:
        super().values(values)
        if self._lines is not None:
            self._lines.values(values)

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        if self._lines is not None:
            self._lines.end_step(step, num_samples)

    @override
    def end_pass(self, step: int, *, exhausted: bool) -> None:
        self._stop()
        if self._lines is not None:
            self._lines.end_pass(step, exhausted=exhausted)
            self._lines = None
            note_bar(is_shown=False)

    def _stop(self) -> None:
        if self._live is not None:
            self._took_s = time.monotonic() - self._began_s
            note_bar(is_shown=False)
            self._live.stop()
            self._live = None

    def _line(self, width: int) -> list[tuple[str, str]]:
        progress = self._progress()
        if progress is None:
            return []
        times = time_left(progress, time.time()) if self._took_s is None else [clock(self._took_s)]
        return bar_line(progress, times, self._values, width)


def choose_display(
    style: str, progress: Callable[[], PassProgress | None], *, is_main: bool, on_terminal: bool
) -> Display | None:
    """Returns the display for ``RunConfig.progress``, which is ``style``; None: nothing is shown,
    as on all ranks except 0."""
    if not is_main or style == "off":
        return None
    return (Bar if style == "bar" or (style == "auto" and on_terminal) else Lines)(progress)
