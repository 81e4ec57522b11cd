"""The run that this process has joined for Lightning: scripts make a trainer to fit, and often
another to test."""

from __future__ import annotations

import contextlib
from typing import Any

import lockstep
from lockstep import Team
from lockstep._base.errors import UsageError


class Joined:
    """A team, from whose process the launcher is hidden.

    Args:
        settings: of ``lockstep.join``.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.team: Team = lockstep.join(**settings)
        self.num_fits = 0
        """The calls of ``trainer.fit`` so far, by which their states are told apart."""
        self.is_behind = False
        """Whether the newest fit was left out, since an earlier launch has completed it and the run
        resumes in a later one: its module has the weights of the beginning."""
        # held: Lightning would open a process group of its own
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.team.hide_launcher())

    def close(self) -> None:
        """Leave the run, and show the launcher's variables again."""
        self._stack.close()
        self.team.close()


_newest: Joined | None = None


def joined(settings: dict[str, Any]) -> Joined:
    """The run of these settings: joined now, or by an earlier strategy. Every rank must call it.

    Raises:
        UsageError: an earlier strategy has joined with other settings, or the script has joined by
            itself.
    """
    global _newest
    if _newest is None or _newest.team.is_closed:
        _newest = Joined(settings)
    elif _newest.settings != settings:
        raise UsageError(
            f"LockstepStrategy({_written(settings)}) after LockstepStrategy({_written(_newest.settings)}): a process "
            "takes part in "
            "one run. Give all trainers of the script the same arguments, or start one script per run."
        )
    return _newest


def _written(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
