"""Shows which of several trials or checks is running, and for how long. It implements
``tools.trials.trial.Observer``."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status
from rich.text import Text

from lockstep._cli.tables import say


class Progress:
    """A progress display: a moving line on a terminal, a line for each trial elsewhere, and a line
    when the trial has finished.

    Args:
        console: the output.
        is_brief: whether to show only the moving line.
    """

    def __init__(self, console: Console, *, is_brief: bool = False) -> None:
        self._console = console
        self._is_brief = is_brief
        self._description = ""
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, description: str) -> None:
        """Shows which trial begins."""
        self._description = description
        if self._status is not None:
            self._status.update(Text(description))
            self._status.start()
        elif not self._is_brief:
            say(self._console, f"{description} ...")

    def waiting(self, elapsed_s: float) -> None:
        """Show for how long it has run."""
        if self._status is not None:
            self._status.update(Text(f"{self._description}: {elapsed_s:.0f} s"))

    def ended(self, outcome: str) -> None:
        """Shows the outcome."""
        if not self._is_brief:
            say(self._console, f"{self._description}: {outcome}")
