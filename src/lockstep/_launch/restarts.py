"""Whether all workers are restarted after one has failed, and the messages about it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from lockstep._base.errors import ConfigError, LaunchError
from lockstep._launch import failures
from lockstep._launch.failures import Failure
from lockstep._launch.observer import JoinedRun
from lockstep._launch.spec import LaunchSpec


def check_max_restarts(asked: int) -> None:
    """Checks a number of restarts.

    Raises:
        ConfigError: it is not a whole number, or negative.
    """
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 0:
        raise ConfigError(f"max_restarts={asked!r}: it must be a whole number, 0 or more", code="max-restarts-invalid")


def follows(spec: LaunchSpec, cause: Failure) -> bool:
    """Whether the workers are restarted after a start that ended by ``cause``."""
    return spec.restart < spec.max_restarts and not cause.would_recur


def numbered(restart: int, spec: LaunchSpec) -> str:
    """The name of a restart, on the terminal and in logs."""
    if spec.node is not None:  # where machines come and go, not every start is for a failure
        return f"lockstep: start {restart + 1}, as {spec.world_size} processes on {spec.node.num_nodes} nodes"
    return f"lockstep: restart {restart} of {spec.max_restarts}"


def announce(reported: Sequence[Failure], spec: LaunchSpec, *, attached: int | None) -> str:
    """The message between two starts: the failures of the first, and that the second follows."""
    text = failures.report(reported, spec.world_size, attached=attached)
    who = "the process starts" if spec.world_size == 1 else f"all {spec.world_size} processes start"
    return f"{text}\n\n{numbered(spec.restart + 1, spec)}: {who} again"


def last_error(
    reported: Sequence[Failure],
    spec: LaunchSpec,
    *,
    attached: int | None = None,
    stopped_by: signal.Signals | None = None,
    joined: JoinedRun | None = None,
) -> LaunchError:
    """The error for a launch whose last start has failed. ``joined``: the run that the same command
    would resume."""
    text = failures.report(reported, spec.world_size, attached=attached)
    was_killed = reported[0].exit_status > 128
    if joined is not None and not reported[0].is_of_all and (joined.newest is not None or was_killed):
        words = joined.as_words()
        text += f"\n\n{words[0].upper()}{words[1:]}."
    text += why_not(reported[0], spec.max_restarts, stopped_by)
    return LaunchError(text, reported[0].exit_status or 1, reported[0].summary(), code=reported[0].code)


def why_not(cause: Failure | None, max_restarts: int, stopped_by: signal.Signals | None = None) -> str:
    """The end of a message about failures without another restart, after a blank line; empty:
    restarts were not requested."""
    if not max_restarts:
        return ""
    if stopped_by is not None:
        why = f"it failed after {stopped_by.name}, which asked it to exit"
    elif cause is not None and cause.would_recur:
        why = f"a {cause.kind} would occur again"
    else:
        why = f"all restarts were used ({max_restarts})"
    return f"\n\nlockstep: not started again: {why}"
