"""The stages that a launch goes through to its end, and what leads from one to the next. Pure: ``supervise`` acts on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto

ECHO_S = 0.5
"""How long the rank that failed first may take to say so, once others have failed for it."""
KILL_S = 5.0
"""How long a killed worker may take to go; the kernel can hold one back for good, we do not wait for good."""


class Stage(Enum):
    """Where the launch is."""

    RUNNING = auto()
    ECHO = auto()
    """Ranks have failed only because another did. That one is about to say why, and must not be interrupted in that."""
    SAVING = auto()
    """The workers save the run, and then end by themselves."""
    ENDING = auto()
    """They were asked to end at once."""
    KILLED = auto()


class Event(Enum):
    """What can happen to it."""

    FAILED = auto()
    """A worker, and not only because another did."""
    ECHOED = auto()
    """A worker has failed, like those before it, because another did."""
    SAVED = auto()
    """A worker has saved the run, or could not, and has ended: all of them were asked to, and the others follow."""
    ASKED_TO_SAVE = auto()
    """Somebody stops the launcher, and all workers save the run when they are sent the signal."""
    ASKED_TO_END = auto()
    """Somebody stops the launcher, and they do not."""
    ASKED_AGAIN = auto()
    """Somebody has stopped it for the second time."""
    TIMED_OUT = auto()
    """``State.until`` has come."""


class Action(Enum):
    """What is to be done."""

    SAVE = auto()
    """Send the workers the signal that the launcher has got."""
    END = auto()
    """Ask them to end."""
    KILL = auto()
    GIVE_UP = auto()
    """Tell the user that processes which were killed do not end."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The stage, and what else the next one depends on."""

    stage: Stage = Stage.RUNNING
    until: float = math.inf
    """When the stage is over even if nothing happens, in the time of ``time.monotonic``."""
    is_saving: bool = False
    """Whether the run was asked to save itself, whatever has happened since."""

    @property
    def was_cut_short(self) -> bool:
        """Whether the workers do not end by themselves: they were asked to end at once, or killed."""
        return self.stage in (Stage.ENDING, Stage.KILLED)


def transition(
    state: State, event: Event, now: float, *, end_s: float, save_s: float, saved_s: float
) -> tuple[State, Action | None]:
    """What follows; the action is None where nothing is to be done.

    Args:
        state: before the event.
        event: what has happened.
        now: when, in the time of ``time.monotonic``.
        end_s: for how many seconds workers that are asked to end are waited for.
        save_s: the same for those that save the run.
        saved_s: the same for the others, once one of them has saved it.
    """
    stage = state.stage
    if event in (Event.ASKED_TO_SAVE, Event.SAVED):
        state = replace(state, is_saving=True)
    if event is Event.TIMED_OUT and stage is Stage.KILLED:
        return state, Action.GIVE_UP
    if event is Event.ASKED_AGAIN or (event is Event.TIMED_OUT and stage in (Stage.SAVING, Stage.ENDING)):
        return replace(state, stage=Stage.KILLED, until=now + KILL_S), Action.KILL
    if state.was_cut_short:
        return state, None
    if event is Event.ECHOED:
        if now + ECHO_S < state.until:
            state = replace(state, stage=Stage.ECHO, until=now + ECHO_S)
        return state, None
    if event not in (Event.ASKED_TO_SAVE, Event.SAVED):
        return replace(state, stage=Stage.ENDING, until=now + end_s), Action.END
    if stage is not Stage.ECHO:
        until = now + save_s if event is Event.ASKED_TO_SAVE else min(state.until, now + saved_s)
        state = replace(state, stage=Stage.SAVING, until=until)
    return state, Action.SAVE if event is Event.ASKED_TO_SAVE else None
