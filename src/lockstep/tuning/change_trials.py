"""Tries changes that alter the answer, after the loader has been measured: each in turn with the unchanged run."""

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

Kind = Callable[[Session, Windows], list[Change]]
KINDS: dict[str, Kind] = {
    "threads": threads,
    "memory-format": memory_formats,
    "precision": precisions,
    "micro-batch": micro_batches,
    "compile": compiles,
}
"""By name, as in ``request.PROPOSALS``: returns the changes of that kind that make sense for a run."""
_COMPARISONS = 3
"""The number of comparisons, which must all favour a change."""
_FIRST_STEPS = 3


class ChangeTrials:
    """Tries the requested changes. If the script leaves its loop meanwhile, the next pass continues where it stopped.

    Args:
        session: of this process.
        windows: of the loader.
    """

    def __init__(self, session: Session, windows: Windows) -> None:
        self.tried: list[dict[str, Any]] = []
        """The result of each change."""
        self.left = list(session.proposals)
        """The kinds that were not tried yet."""
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
            for change in KINDS[self.left[0]](self._session, self._windows):
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
                break  # no better than the smaller one
            change, speedups, first_s = candidate, [speedup], more_s
            candidate = candidate.larger(step_s_of_it) if is_clear(speedup) else None
        while 0 < len(speedups) < _COMPARISONS and is_clear(*speedups):
            unchanged = yield from self._windows.time(loading, step_s, num_steps)
            with change.made():
                changed = yield from self._windows.time(loading, step_s, num_steps)
            speedups.append(unchanged.step_s / changed.step_s)
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
        """The speedup of a change, the time of a step with it, and how much longer its first steps took, in seconds."""
        with change.made():
            took_s = yield from self._windows.take(_FIRST_STEPS)
            changed = yield from self._windows.time(loading, step_s, num_steps)
        unchanged = yield from self._windows.time(loading, step_s, num_steps)
        return unchanged.step_s / changed.step_s, changed.step_s, max(0.0, took_s - _FIRST_STEPS * changed.step_s)
