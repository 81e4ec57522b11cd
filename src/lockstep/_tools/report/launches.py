"""The launches of a run and how each ended, from its event log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep._events import history


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch as it is shown."""

    number: int
    """The number of the launch, from 1."""
    start: Mapping[str, Any]
    began_s: float
    ended_s: float
    """The time of its last event, or now."""
    is_broken: bool
    """Whether it was killed, or failed."""
    how: str
    """How it ended, as text."""
    resumed_at: int | None
    """The step after which it resumed; None: it began at the start."""
    last_step: int | None

    @property
    def world_size(self) -> int | None:
        """Its number of processes."""
        size = self.start.get("world_size")
        return size if isinstance(size, int) else None


def launches_of(events: Sequence[Mapping[str, Any]], *, is_running: bool, now_s: float) -> list[Launch]:
    """The launches in an event log, in order.

    Args:
        events: all of them, repeated steps as well.
        is_running: whether a process has locked the run now: then the last launch is still active.
        now_s: seconds since 1970.
    """
    found = [launch for launch in history.launches(events) if launch.start and launch.times_s]
    return [
        _launch(number, launch, now_s if is_running and launch is found[-1] else None)
        for number, launch in enumerate(found, start=1)
    ]


def _launch(number: int, launch: history.Launch, now_s: float | None) -> Launch:
    """Returns a launch. ``now_s``: the present time if it is still active."""
    preempted, last_step = launch.last("preempted"), launch.last_step
    is_broken = not (launch.has_ended or preempted) and now_s is None
    at = "" if last_step is None else f" at step {last_step:,}"
    if launch.has_ended:
        how = f"finished{at}"
    elif preempted:
        how = f"stopped by {preempted.get('signal') or 'a signal'}{at}"
    else:
        how = f"killed or failed{at or ' before its first step'}" if is_broken else f"running{at}"
    return Launch(
        number=number,
        start=launch.start,
        began_s=launch.times_s[0],
        ended_s=max([*launch.times_s, *([] if now_s is None else [now_s])]),
        is_broken=is_broken,
        how=how,
        resumed_at=launch.resumed_after or None,
        last_step=last_step,
    )
