"""Workers whose program is over and whose process does not end: whether they are worth waiting for."""

from __future__ import annotations

import math

from lockstep.launch.idleness import Idleness, usage_of
from lockstep.launch.observer import Observers

_LOOK_S = 1.0
LINGERS_S = 10.0
"""A worker that is still there so long after its program is reported."""
_IDLE_S = 2.0
"""One that has done nothing for so long does nothing."""
_BUSY_S = 120.0
"""Before, one line is enough for a worker that does something, such as an upload."""


class Lingering:
    """The workers of one launch whose program is over. ``observers``: of the launch."""

    def __init__(self, observers: Observers) -> None:
        self.next_look = math.inf
        """When to call ``look`` again, in the time of ``time.monotonic``."""
        self._observers = observers
        self._over_at: dict[int, float] = {}
        """By rank, as are the next three."""
        self._patience_s: dict[int, float] = {}
        self._pids: dict[int, int] = {}
        self._work: dict[int, Idleness] = {}
        self._told = set[int]()
        self._mentioned = set[int]()
        """Those that did something when they were reported first."""

    def begin(self, rank: int, pid: int, now: float, *, patience_s: float) -> None:
        """A worker's program is over.

        ``patience_s``: how long what keeps it is worth waiting for while it does something, if the launch is to end.
        """
        self._over_at[rank], self._pids[rank], self._work[rank] = now, pid, Idleness(now)
        self._patience_s[rank] = patience_s
        self.next_look = min(self.next_look, now + _LOOK_S)

    def end(self, rank: int) -> None:
        """A worker has ended."""
        for known in (self._over_at, self._pids, self._work, self._patience_s):
            known.pop(rank, None)
        if not self._work:
            self.next_look = math.inf

    def look(self, now: float) -> None:
        """Look what they do, and report those that do not end, once."""
        usage = usage_of(self._pids.values())
        for rank, work in self._work.items():
            work.note(usage[self._pids[rank]], now)
        self.next_look = now + _LOOK_S
        late = {rank for rank, over_at in self._over_at.items() if now - over_at >= LINGERS_S} - self._told
        working = {rank for rank in late if self._is_at_work(rank) and now - self._over_at[rank] < _BUSY_S}
        self._told |= self._report(late - working, in_full=True)
        self._mentioned |= self._report(working - self._mentioned, in_full=False)

    def _is_at_work(self, rank: int) -> bool:
        return self._work[rank].idle_s < _IDLE_S

    def _report(self, ranks: set[int], *, in_full: bool) -> set[int]:
        at_work = {rank: self._is_at_work(rank) for rank in ranks}
        return set(self._observers.ask(lambda each: each.linger(at_work, in_full=in_full)) or ()) if ranks else set()

    # When the launch is to end

    def held(self, now: float) -> set[int]:
        """The ranks that something of the script's keeps from ending for no good reason, or that do not react."""
        held = self._observers.ask(lambda each: each.held(tuple(self._over_at))) or ()
        return {rank for rank in held if not (self._is_at_work(rank) and now - self._over_at[rank] < self._patience_s[rank])}

    def is_worth_waiting(self, now: float) -> bool:
        """Whether one of the other ranks does something: it may be writing the last checkpoint."""
        at_work = set(filter(self._is_at_work, self._work))
        return bool(at_work) and bool(at_work - self.held(now))
