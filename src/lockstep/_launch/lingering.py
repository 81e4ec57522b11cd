"""Workers whose program is finished and whose process does not exit: reports what keeps them."""

from __future__ import annotations

import math

from lockstep._base.observers import Observers
from lockstep._launch.observer import Observer

_LOOK_S = 1.0
LINGERS_S = 10.0
"""A worker that is still there so long after its program is reported."""


class Lingering:
    """The workers of one launch whose program is finished. ``observers``: of the launch."""

    def __init__(self, observers: Observers[Observer]) -> None:
        self.next_look = math.inf
        """The moment at which to call ``look`` again, in the time of ``time.monotonic``."""
        self._observers = observers
        self._over_at: dict[int, float] = {}  # by rank

    def begin(self, rank: int, now: float) -> None:
        """Notes that a worker's program is finished."""
        self._over_at[rank] = now
        self.next_look = min(self.next_look, now + LINGERS_S)

    def end(self, rank: int) -> None:
        """Forgets a worker that has exited, or was reported."""
        self._over_at.pop(rank, None)
        if not self._over_at:
            self.next_look = math.inf

    def look(self, now: float) -> None:
        """Reports workers that do not exit, once. (What keeps one may not be known at the first
        look.)"""
        self.next_look = now + _LOOK_S
        late = [rank for rank, over_at in self._over_at.items() if now - over_at >= LINGERS_S]
        for rank in self._observers.ask(lambda each: each.linger(late)) or ():
            self.end(rank)
