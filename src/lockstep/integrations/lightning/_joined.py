"""The run that this process joined for Lightning. A script may create several trainers, often one
to fit and one to test, and all of them belong to this run."""

from __future__ import annotations

import contextlib
from typing import Any

import lockstep
from lockstep import Team
from lockstep._base.errors import UsageError


class Joined:
    """A joined run, in a process from which the launcher is hidden.

    Args:
        settings: the settings of ``lockstep.join``.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.team: Team = lockstep.join(**settings)
        self.num_fits = 0
        """The number of calls of ``trainer.fit`` so far, which distinguishes their states."""
        self.is_behind = False
        """Whether the newest fit was skipped because an earlier launch completed it and the run
        resumes in a later one. Its module then has its initial weights."""
        # Until close(): with the launcher's variables, Lightning would open a second process group.
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.team.hide_launcher())

    def close(self) -> None:
        """Leaves the run and restores the launcher's variables."""
        self._stack.close()
        self.team.close()


_newest: Joined | None = None


def joined(settings: dict[str, Any]) -> Joined:
    """Joins a run with these settings, or returns the run that an earlier strategy joined. Every
    rank must call it.

    Raises:
        UsageError: an earlier strategy joined with other settings, or the script called
            ``lockstep.join``.
    """
    global _newest
    if _newest is None or _newest.team.is_closed:
        _newest = Joined(settings)
    elif _newest.settings != settings:
        raise UsageError(
            f"LockstepStrategy({_written(settings)}) differs from the earlier LockstepStrategy({_written(_newest.settings)}), "
            "but a process belongs to one run. Use the same arguments for all trainers of the script, or one script per "
            "run.",
            code="settings-of-joined-run",
        )
    return _newest


def _written(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
