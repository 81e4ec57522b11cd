"""The loaders on which a run evaluates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.data.assignment import ShardAssignment
from lockstep.data.evaluation import EvaluationSource
from lockstep.data.evaluation_keys import EvaluationKey, EvaluationKeys
from lockstep.data.fetch import set_loading
from lockstep.data.loader import PreparedLoader
from lockstep.plan.loading import Loading

_MAX_CACHED = 8


class EvaluatedLoaders:
    """Caches the newest evaluation loaders with their workers, and numbers the evaluations.

    Args:
        assignment: makes this process's shard assignment.
        workers: see ``RunConfig.workers``.
    """

    def __init__(self, assignment: Callable[[], ShardAssignment], workers: int | None) -> None:
        self._assignment = assignment
        self._workers = workers
        self._cache: dict[int, tuple[Any, EvaluationSource]] = {}
        self._evaluation_keys = EvaluationKeys()

    def next(self, loader: Any, step: int, *, in_step: bool) -> tuple[EvaluationSource, EvaluationKey]:
        """The source and the key of the next evaluation: after ``step``, or within the loop's body (``in_step``)."""
        batches = loader.wrapped if isinstance(loader, PreparedLoader) else loader
        if id(batches) not in self._cache:
            set_loading(batches, Loading(workers=self._workers))
            self._cache[id(batches)] = (batches, EvaluationSource(batches, self._assignment()))
            while len(self._cache) > _MAX_CACHED:  # a script may create a loader for every evaluation
                del self._cache[next(iter(self._cache))]
        return self._cache[id(batches)][1], self._evaluation_keys.next(id(batches), step, in_step=in_step)
