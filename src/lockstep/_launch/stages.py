"""The stages of a launch, and the transitions between them. Pure: ``supervise`` carries out the
actions.

::

    RUNNING --echoed--> ECHO --0.5 s, or failed--+
       |                                         v
       +------failed, or asked to end--------> ENDING --timed out--> KILLED
       |                                         ^                     ^
       +--asked to save, or saved--> SAVING -----+ failed              |
                                        |                              |
                                        +-- timed out, asked again ----+

Stages only go to the right: once workers were asked to end, nothing but a second signal or a time
limit changes what happens, so an error that a worker meets while it ends is no new failure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto

ECHO_S = 0.5
"""Seconds that the rank that failed first gets to report it, once others have failed because of
it."""
KILL_S = 60.0
"""Seconds that a killed worker gets to end, and the server to report it, which may be importing
modules. (The kernel may block a process forever.)"""


class Stage(Enum):
    """The stage of a launch."""

    RUNNING = auto()
    ECHO = auto()
    """Ranks have failed only because another did, which is about to report why and must not be
    interrupted."""
    SAVING = auto()
    """The workers are saving the run, and then end by themselves."""
    ENDING = auto()
    """The workers were asked to exit immediately."""
    KILLED = auto()


class Event(Enum):
    """What can happen to a launch."""

    FAILED = auto()
    """A worker failed, and not only because of another rank."""
    ECHOED = auto()
    """A worker failed, like all before it, only because of another rank."""
    SAVED = auto()
    """A worker ended after it had saved the run, or could not. All were asked to, so the others
    follow."""
    ASKED_TO_SAVE = auto()
    """The launcher got a signal on which all workers save the run."""
    ASKED_TO_END = auto()
    """The launcher got a signal on which they do not."""
    ASKED_AGAIN = auto()
    """The launcher got a second signal."""
    TIMED_OUT = auto()
    """``State.until`` is reached."""


class Action(Enum):
    """What the launcher must do."""

    SAVE = auto()
    """Forward the launcher's signal to the workers."""
    END = auto()
    """Ask the workers to end."""
    KILL = auto()
    GIVE_UP = auto()
    """Report that killed processes do not end."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The stage, and what else the transitions depend on."""

    stage: Stage = Stage.RUNNING
    until: float = math.inf
    """The moment at which the stage times out, in the time of ``time.monotonic``."""
    is_saving: bool = False
    """Whether the run was asked to save itself, at any time."""

    @property
    def was_cut_short(self) -> bool:
        """Whether the workers were asked to exit immediately, or killed."""
        return self.stage in (Stage.ENDING, Stage.KILLED)


def transition(
    state: State, event: Event, now: float, *, end_s: float, save_s: float, saved_s: float
) -> tuple[State, Action | None]:
    """The state after an event, and the action to carry out, if any.

    Args:
        state: before the event.
        now: when, in the time of ``time.monotonic``.
        end_s: seconds that workers get when they are asked to end.
        save_s: seconds that they get to save the run.
        saved_s: seconds that the others get, once one has saved it.
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
        # Only the first echo sets the time: further ones, which follow it, must not postpone the
        # end.
        if now + ECHO_S < state.until:
            state = replace(state, stage=Stage.ECHO, until=now + ECHO_S)
        return state, None
    if event not in (Event.ASKED_TO_SAVE, Event.SAVED):
        return replace(state, stage=Stage.ENDING, until=now + end_s), Action.END
    # After an echo a rank is lost, so the end is due in any case, and a save does not postpone it.
    if stage is not Stage.ECHO:
        # Once one rank has saved, the others have saved the same step or are about to. They get
        # less time then, and never more than they had.
        until = now + save_s if event is Event.ASKED_TO_SAVE else min(state.until, now + saved_s)
        state = replace(state, stage=Stage.SAVING, until=until)
    return state, Action.SAVE if event is Event.ASKED_TO_SAVE else None
