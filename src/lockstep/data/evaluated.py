"""The loaders that a run evaluates on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.data.assignment import ShardAssignment
from lockstep.data.evaluation import EvaluationSource
from lockstep.data.evaluation_keys import EvaluationKey, EvaluationKeys
from lockstep.data.fetch import set_workers
from lockstep.data.loader import PreparedLoader

_MOST_KEPT = 8


class EvaluatedLoaders:
    """Keeps the newest of them with their workers, and numbers the evaluations.

    Args:
        assignment: what is this process's of a loader.
        workers: see ``RunConfig.workers``.
    """

    def __init__(self, assignment: Callable[[], ShardAssignment], workers: int | None) -> None:
        self._assignment = assignment
        self._workers = workers
        self._kept: dict[int, tuple[Any, EvaluationSource]] = {}
        self._evaluation_keys = EvaluationKeys()

    def next(self, loader: Any, step: int, *, in_step: bool) -> tuple[EvaluationSource, EvaluationKey]:
        """The source and the key of the evaluation that begins now, after this step, or in the body of its loop."""
        batches = loader.wrapped if isinstance(loader, PreparedLoader) else loader
        if id(batches) not in self._kept:
            set_workers(batches, self._workers)
            self._kept[id(batches)] = (batches, EvaluationSource(batches, self._assignment()))
            while len(self._kept) > _MOST_KEPT:  # a script may make a loader for each
                del self._kept[next(iter(self._kept))]
        return self._kept[id(batches)][1], self._evaluation_keys.next(id(batches), step, in_step=in_step)
