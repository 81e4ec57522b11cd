"""The run that this process joined with its first ``TrainingArguments``."""

from __future__ import annotations

from typing import Any

import lockstep
from lockstep._base.errors import ConfigError
from lockstep._joining.join import joined_team
from lockstep._joining.team import Team

_team: Team | None = None
_asked: dict[str, Any] = {}
"""The settings with which this process joined its run."""
_num_trainings = 0


def join_with(settings: dict[str, Any], names: dict[str, str]) -> Team:
    """Joins the run; if this process already joined it, returns the same team. Every rank must call
    it.

    Args:
        settings: the settings of ``lockstep.join`` that result from the arguments.
        names: for each setting, the argument that determines it.

    Raises:
        ConfigError: this process joined the run with different settings.
    """
    global _team, _asked, _num_trainings
    if _team is None or _team.is_closed:
        earlier = joined_team()  # The script may have called lockstep.join() itself.
        _team = earlier or lockstep.join(**settings)
        _num_trainings = 0
        _asked = settings if _team is not earlier else {name: getattr(_team.config, name) for name in names}
    for setting, argument in names.items():
        before, now = _asked.get(setting), settings.get(setting)
        if before != now and not (now is None and setting in ("device", "precision")):
            raise ConfigError(
                f"{argument} means {setting}={now!r}, but this process joined its run with {setting}={before!r}, and a run has "
                f"one value. Use the same {argument} in all TrainingArguments of a script.",
                code="settings-of-joined-run",
            )
    return _team


def team() -> Team:
    """Returns the team that this process joined.

    Raises:
        ConfigError: no run is open.
    """
    if _team is None or _team.is_closed:
        raise ConfigError("no run is open. Create lockstep's TrainingArguments first, which join a run.", code="no-run")
    return _team


def next_training() -> int:
    """Returns the number of the next training in the run, from 1. It is equal on every rank."""
    global _num_trainings
    _num_trainings += 1
    return _num_trainings
