"""Which loader settings to try next, starting from what the measured costs predict. Pure."""

from __future__ import annotations

import math

from lockstep.plan.loading import Loading
from lockstep.tools.tune.costs import Costs, best_workers, is_short_of_cores, loading_with, predict_s

NUM_TRIALS = 3
_ALIKE = 1.02
_REACHED = 1.03
"""Steps that take at most this multiple of their time on batches in memory need no faster loader."""
_NOTABLE = 1.05
_CROWDED = 1.2
"""Steps that take at least this multiple of their time without a loader, although they do not wait for it, lack cores."""
_CLEAR = 1.03
_FAR = 1.25
"""A trial that takes more than this multiple of the predicted time is far from it."""
_RIVAL = 1.35
"""A trial within this multiple of the fastest one's time may be as fast: single windows cannot order the two."""
_FEWER, _MORE = 1 / 6, 1 / 3
"""The distance to the neighbours of a number of workers, as a fraction of it; at least one worker."""


class Search:
    """Begins with the predicted best number of workers, then tries neighbours of the best one so far.

    Args:
        costs: of the script's step and loader.
        present: the script's own settings, which are not tried again.
        num_trials: the maximum.
    """

    def __init__(self, costs: Costs, present: Loading, num_trials: int = NUM_TRIALS) -> None:
        self._costs = costs
        self._present = present
        self._num_trials = num_trials
        self.tried: dict[Loading, float] = {}
        """Seconds a step of each trial."""

    @property
    def best(self) -> Loading | None:
        """The fastest settings tried; among those about as fast, the ones with fewest workers. None: nothing was tried."""
        least_s = min(self.tried.values(), default=0.0)
        near = [loading for loading, step_s in self.tried.items() if step_s <= _ALIKE * least_s]
        return min(near, key=lambda loading: loading.workers or 0, default=None)

    @property
    def rivals(self) -> list[Loading]:
        """The fastest settings and the next fastest ones, if these may be as fast; fewest workers first."""
        ordered = sorted(self.tried, key=lambda loading: self.tried[loading])[:2]
        near = [loading for loading in ordered if self.tried[loading] <= _RIVAL * self.tried[ordered[0]]]
        return sorted(near, key=lambda loading: loading.workers or 0)

    def note(self, loading: Loading, step_s: float) -> None:
        """Record the step time of a trial."""
        self.tried[loading] = step_s

    def next(self) -> Loading | None:
        """What to try next; None: nothing."""
        if len(self.tried) == self._num_trials:
            return None
        best = self.best
        if best is not None and keeps_up(self._costs, self.tried[best]):
            return None
        known = {*self.tried, self._present}
        if best is None:
            candidates = [best_workers(self._costs), best_workers(self._costs, but=self._present.workers)]
        else:
            candidates = [*self._fallback(), *self._around(best.workers or 0)]
        return next((loading for loading in map(self._with, candidates) if loading not in known), None)

    def _with(self, workers: int) -> Loading:
        return loading_with(self._costs, workers, self._present)

    def _fallback(self) -> list[int]:
        """One worker for each core that the training process leaves, if all trials had more workers than cores and were far
        slower than predicted: a disk, say, serves only so many readers at a time."""
        fallback = max(1, int(self._costs.cores) - 1)
        reckoned_s = predict_s(self._costs, fallback)
        is_far = [
            (loading.workers or 0) > self._costs.cores
            and step_s > max(reckoned_s, _FAR * predict_s(self._costs, loading.workers or 0))
            for loading, step_s in self.tried.items()
        ]
        return [fallback] if all(is_far) else []

    def _around(self, workers: int) -> list[int]:
        """Neighbours of a number of workers, the more promising one first."""
        fewer = max(0, workers - max(1, round(workers * _FEWER)))
        more = min(self._costs.most_workers, workers + max(1, round(workers * _MORE)))
        step_s = self.tried[self._with(workers)]
        if workers > self._costs.cores and step_s > _FAR * predict_s(self._costs, workers):
            return [max(1, workers // 2), more]  # what is short may be something else, for which so many only cost
        return [fewer, more] if is_short_of_cores(self._costs, max(1, workers)) else [more, fewer]


def keeps_up(costs: Costs, step_s: float, within: float = _REACHED) -> bool:
    """Whether a loader with workers is as good as none, for steps that take ``step_s`` with it."""
    return step_s <= within * (costs.step_s + costs.receive_s)


def may_gain(costs: Costs, workers: int, step_s: float, wait_s: float) -> bool:
    """Whether another loader could make steps notably faster.

    Args:
        costs: of step and loader.
        workers: the script's own.
        step_s: the time of a step with them.
        wait_s: the part of it spent waiting for the loader. Without workers that is all there is to gain; workers may also
            compete with the step for the cores.
    """
    return wait_s >= (_NOTABLE - 1) * step_s or (workers > 0 and step_s >= _CROWDED * costs.step_s)


def is_clear(*speedups: float) -> bool:
    """Whether settings are faster than the present ones by more than the noise of these comparisons."""
    return min(speedups) > 1 and math.prod(speedups) >= _CLEAR ** len(speedups)
