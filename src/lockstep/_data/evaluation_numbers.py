"""The numbers of a run's evaluations, which identify their random streams."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lockstep._data.assignment import ShardAssignment
from lockstep._data.evaluation_source import EvaluationKey, EvaluationSource
from lockstep._data.fetch import set_workers
from lockstep._data.loader import PreparedLoader


class Evaluations:
    """The numbering of evaluations since the last step.

    Args:
        assignment: a function that makes this process's shard assignment.
        workers: the number of loader workers, as in ``RunConfig.workers``.
        held: a function that returns the ids of the objects whose state is in checkpoints.
    """

    def __init__(
        self, assignment: Callable[[], ShardAssignment], workers: int | None, held: Callable[[], Collection[int]]
    ) -> None:
        self._held = held
        self._assignment = assignment
        self._workers = workers
        self._since: tuple[object, int, bool] | None = None
        """The place of the newest evaluation, the steps taken before it, and whether it was within
        a step."""
        self._loaders: list[Any] = []
        """The loaders of the evaluations since then, one for each. (The references prevent that a
        new loader gets the ``id`` of an old one.)"""

    def next(self, loader: Any, place: object, step: int, *, in_step: bool) -> tuple[EvaluationSource, EvaluationKey]:
        """Returns the source and the key of the next evaluation.

        Args:
            loader: the loader to evaluate on.
            place: the section of the script, and the epoch. (A run that resumes between two epochs
                or after the last one does not repeat the evaluations of the epoch before.)
            step: steps taken so far.
            in_step: whether the evaluation is inside the body of a loop over a training loader.
        """
        batches = loader.wrapped if isinstance(loader, PreparedLoader) else loader
        if (place, step, in_step) != self._since:
            self._since = (place, step, in_step)
            self._loaders.clear()
        set_workers(batches, self._workers)
        source = EvaluationSource(batches, self._assignment(), self._held())
        self._loaders.append(batches)
        numbers = list(dict.fromkeys(map(id, self._loaders)))
        repeat = sum(known is batches for known in self._loaders) - 1
        return source, EvaluationKey(step=step, number=numbers.index(id(batches)), repeat=repeat)
