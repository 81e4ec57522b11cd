"""Shows which of several trials or checks runs, and for how long. A ``tools.trials.trial.Observer``."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status
from rich.text import Text

from lockstep.cli.tables import say
from lockstep.world.machine.sizes import span


class Progress:
    """A line that moves on a terminal, a line for each trial elsewhere; and a line when it has ended.

    Args:
        console: where to.
        is_brief: only the line that moves.
    """

    def __init__(self, console: Console, *, is_brief: bool = False) -> None:
        self._console = console
        self._is_brief = is_brief
        self._description = ""
        self._left_s: float | None = None
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, description: str, left_s: float | None = None) -> None:
        """Say what begins, and how long all that is left may take."""
        self._description, self._left_s = description, left_s
        if self._status is not None:
            self._status.update(Text(description))
            self._status.start()
        elif not self._is_brief:
            say(self._console, f"{description} ...{'' if left_s is None else f' (about {span(left_s)} left)'}")

    def waiting(self, elapsed_s: float) -> None:
        """Show for how long it has run."""
        if self._status is not None:
            left = "" if self._left_s is None else f", about {span(self._left_s - elapsed_s)} left"
            self._status.update(Text(f"{self._description}: {elapsed_s:.0f} s{left}"))

    def ended(self, outcome: str) -> None:
        """Say how it has ended."""
        if not self._is_brief:
            say(self._console, f"{self._description}: {outcome}")
