"""The run that this process's arguments have joined."""

from __future__ import annotations

from typing import Any

import lockstep
from lockstep._base.errors import ConfigError
from lockstep._joining.join import joined_team
from lockstep._joining.team import Team

_team: Team | None = None
_asked: dict[str, Any] = {}
"""The settings that the first arguments have asked for."""
_num_trainings = 0


def join_with(settings: dict[str, Any], names: dict[str, str]) -> Team:
    """Join the run, or return the team that this process has joined it with. Every rank must call
    it.

    Args:
        settings: those of ``lockstep.join`` that follow from the arguments.
        names: for each of them, the argument that it follows from.

    Raises:
        ConfigError: the run was joined with others.
    """
    global _team, _asked, _num_trainings
    if _team is None or _team.is_closed:
        earlier = joined_team()  # by the script's own lockstep.join(...)
        _team = earlier or lockstep.join(**settings)
        _num_trainings = 0
        _asked = settings if _team is not earlier else {name: getattr(_team.config, name) for name in names}
    for setting, argument in names.items():
        before, now = _asked.get(setting), settings.get(setting)
        if before != now and not (now is None and setting in ("device", "precision")):
            raise ConfigError(
                f"{argument} asks for {setting}={now!r}, and this process has joined its run with {setting}={before!r}, which "
                f"holds for all of it. Give all TrainingArguments of a script the same {argument}."
            )
    return _team


def team() -> Team:
    """The team that arguments have joined.

    Raises:
        ConfigError: there is none.
    """
    if _team is None or _team.is_closed:
        raise ConfigError("no run is open: make lockstep's TrainingArguments first, which join it")
    return _team


def next_training() -> int:
    """The number of the next training in the run, from 1. The same on every rank."""
    global _num_trainings
    _num_trainings += 1
    return _num_trainings
