"""Shows which of several trials or checks runs, and for how long. A
``tools.trials.trial.Observer``."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status
from rich.text import Text

from lockstep._cli.tables import say


class Progress:
    """A line that moves on a terminal, a line for each trial elsewhere; and a line when it has
    ended.

    Args:
        console: where to.
        is_brief: only the line that moves.
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
        """Say what begins."""
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
        """Say how it has ended."""
        if not self._is_brief:
            say(self._console, f"{self._description}: {outcome}")
