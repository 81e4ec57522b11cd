"""What rank 0 shows while the run goes on: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from lockstep.listener import Listener

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PLAIN_EVERY_S = 10.0
_BAR_EVERY_S = 0.1


class Display(Protocol):
    """Something that shows how far a pass over the training loader has come."""

    def begin(self, title: str, num_steps: int | None) -> None:
        """A pass begins."""

    def step(self, done: int) -> None:
        """Steps done in this pass. Called after each step, so it must be quick."""

    def values(self, values: Mapping[str, float]) -> None:
        """The newest logged averages."""

    def end(self) -> None:
        """The pass is over."""


class Lines:
    """A line every few seconds, and one at the end of each pass: for log files."""

    def __init__(self) -> None:
        self._running = False

    def begin(self, title: str, num_steps: int | None) -> None:
        """See Display."""
        self._running = True
        self._title = title
        self._of = "" if num_steps is None else f"/{num_steps}"
        self._values = ""
        self._done = 0
        self._began = self._shown = time.monotonic()

    def step(self, done: int) -> None:
        """See Display."""
        self._done = done
        now = time.monotonic()
        if now - self._shown >= _PLAIN_EVERY_S:
            self._show(now)

    def values(self, values: Mapping[str, float]) -> None:
        """See Display."""
        self._values = _format(values)

    def end(self) -> None:
        """See Display."""
        if self._running:
            self._running = False
            self._show(time.monotonic())

    def _show(self, now: float) -> None:
        self._shown = now
        rate = self._done / max(now - self._began, 1e-9)
        print(f"{self._title}  step {self._done}{self._of}  {rate:.1f} steps/s  {self._values}".rstrip(), flush=True)


class Bar:
    """A progress bar. What the program prints meanwhile appears above it."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def begin(self, title: str, num_steps: int | None) -> None:
        """See Display."""
        # Imported where there is a terminal: it would delay the start of every process by some 50 ms.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.end()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[values]}", markup=False),  # a name may have brackets
            console=Console(file=sys.stdout, force_terminal=True),
            refresh_per_second=8,
        )
        self._task: TaskID = self._progress.add_task(title, total=num_steps, values="")
        self._progress.start()
        self._done = 0
        self._shown = 0.0

    def step(self, done: int) -> None:
        """See Display."""
        self._done = done
        now = time.monotonic()
        if self._progress is not None and now - self._shown >= _BAR_EVERY_S:
            self._shown = now
            self._progress.update(self._task, completed=done)

    def values(self, values: Mapping[str, float]) -> None:
        """See Display."""
        if self._progress is not None:
            self._progress.update(self._task, values=_format(values))

    def end(self) -> None:
        """See Display."""
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done)
            self._progress.stop()
            self._progress = None


class Shown(Listener):
    """Tells a display how far the run has come."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._done = 0

    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        """See Listener."""
        self._done = done
        self._display.begin(f"epoch {epoch + 1}" + (f"/{num_epochs}" if num_epochs else ""), num_steps)

    def end_step(self, step: int, num_samples: int) -> None:
        """See Listener."""
        self._done += 1
        self._display.step(self._done)

    def end_pass(self, step: int, *, exhausted: bool) -> None:
        """See Listener."""
        self._display.end()


def _format(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def choose_display(style: str, *, is_main: bool, on_terminal: bool) -> Display | None:
    """The display for a progress style of RunConfig; None: nothing is shown, as on all ranks but rank 0."""
    if not is_main or style == "off":
        return None
    if style == "bar" or (style == "auto" and on_terminal):
        return Bar()
    return Lines()
