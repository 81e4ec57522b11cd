"""Tries what alters the answer, once the loader is measured: each change beside none, in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.plan.loading import Loading
from lockstep.tuning.compiled import compiles
from lockstep.tuning.micro_batches import micro_batches
from lockstep.tuning.numerics import Change, memory_formats, precisions, threads
from lockstep.tuning.search import is_clear
from lockstep.tuning.session import Session
from lockstep.tuning.windows import Steps, Windows

Row = Callable[[Session, Windows], list[Change]]
ROWS: dict[str, Row] = {
    "threads": threads,
    "memory-format": memory_formats,
    "precision": precisions,
    "micro-batch": micro_batches,
    "compile": compiles,
}
"""The kinds of changes, as ``request.PROPOSALS`` names them: each gives those that make sense for a run."""
_COMPARISONS = 3
"""Comparisons that must all favour a change."""
_FIRST_STEPS = 3


class Apart:
    """Tries the changes that were asked for. A script may leave its loop meanwhile: the next pass goes on where it stopped.

    Args:
        session: of this process.
        windows: takes the steps.
    """

    def __init__(self, session: Session, windows: Windows) -> None:
        self.tried: list[dict[str, Any]] = []
        """What came of each change."""
        self.left = list(session.proposals)
        """The kinds that are not done."""
        self._session = session
        self._windows = windows

    def run(self, loading: Loading, step_s: float, num_steps: int | None, note: Callable[[], None]) -> Steps[None]:
        """Try them.

        Args:
            loading: settings of the loader.
            step_s: the approximate time of a step with them. The same on every rank.
            num_steps: in a pass, if workers are started for every pass; None: they are started once.
            note: called whenever there are results.
        """
        while self.left:
            known = {each["name"] for each in self.tried}
            for change in ROWS[self.left[0]](self._session, self._windows):
                if change.name not in known:
                    yield from self._try(change, loading, step_s, num_steps)
                    note()
            del self.left[0]
            note()

    def _try(self, change: Change, loading: Loading, step_s: float, num_steps: int | None) -> Steps[None]:
        speedups: list[float] = []
        first_s, candidate = 0.0, None if change.why_not else change
        while candidate is not None:
            self._session.say(f"apart, {candidate.name}")
            speedup, step_s_of_it, more_s = yield from self._compare(candidate, loading, step_s, num_steps)
            if speedups and not is_clear(speedup / speedups[0]):
                break  # the smaller one is as good
            change, speedups, first_s = candidate, [speedup], more_s
            candidate = candidate.larger(step_s_of_it) if is_clear(speedup) else None
        while 0 < len(speedups) < _COMPARISONS and is_clear(*speedups):
            here = yield from self._windows.time(loading, step_s, num_steps)
            with change.made():
                there = yield from self._windows.time(loading, step_s, num_steps)
            speedups.append(here.step_s / there.step_s)
        self.tried.append(
            {
                "name": change.name,
                "how": change.how,
                "why_not": change.why_not or change.failure(),
                "alters": change.alters,
                "remark": change.remark(),
                "first_s": first_s,
                "speedups": speedups,
                "gains": bool(speedups) and is_clear(*speedups) and not change.failure(),
            }
        )

    def _compare(
        self, change: Change, loading: Loading, step_s: float, num_steps: int | None
    ) -> Steps[tuple[float, float, float]]:
        """The speedup, the time of a step, and how much longer the first ones took."""
        with change.made():
            took_s = yield from self._windows.take(_FIRST_STEPS)
            there = yield from self._windows.time(loading, step_s, num_steps)
        here = yield from self._windows.time(loading, step_s, num_steps)
        return here.step_s / there.step_s, there.step_s, max(0.0, took_s - _FIRST_STEPS * there.step_s)
