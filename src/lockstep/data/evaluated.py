"""The loaders on which a run evaluates."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from lockstep.data.assignment import ShardAssignment
from lockstep.data.evaluation_source import EvaluationKey, EvaluationSource
from lockstep.data.fetch import set_workers
from lockstep.data.loader import PreparedLoader
from lockstep.data.torch_loader import is_torch_loader

_MOST_KEPT = 8
"""Of the loaders that are no DataLoaders, which a script may make anew for every evaluation."""


class EvaluatedLoaders:
    """Keeps the sources of the loaders that the script has, with their workers, and numbers the evaluations.

    Args:
        assignment: makes this process's shard assignment.
        workers: see ``RunConfig.workers``.
    """

    def __init__(self, assignment: Callable[[], ShardAssignment], workers: int | None) -> None:
        self._assignment = assignment
        self._workers = workers
        self._known: dict[int, tuple[object, EvaluationSource]] = {}
        """By ``id`` of the loader: what stands for it, and its source. (An ``id`` may later be that of another loader, and
        differs between ranks, so none may be taken for it.)"""
        self._alive: dict[int, weakref.ref[Any]] = {}
        """The DataLoaders among them, which the script keeps alive."""
        self._kept: list[int] = []
        """The ids of those that are no DataLoaders, which their sources keep alive, from the oldest on."""
        self._since: tuple[int, int, bool] = (0, 0, False)
        """The epoch of the newest evaluation, the steps taken before it, and whether it was within a step."""
        self._repeats: dict[object, int] = {}
        """The ``repeat`` of the newest evaluation since then, of each loader, in the order of the loaders' first."""

    def next(self, loader: Any, epoch: int, step: int, *, in_step: bool) -> tuple[EvaluationSource, EvaluationKey]:
        """The source and the key of the next evaluation.

        Args:
            loader: the loader to evaluate on.
            epoch: the current one. (A run that resumes between two does not make the evaluations of the first again.)
            step: steps taken so far.
            in_step: whether the evaluation is inside the body of a loop over a training loader.
        """
        batches = loader.wrapped if isinstance(loader, PreparedLoader) else loader
        if (epoch, step, in_step) != self._since:
            self._since = (epoch, step, in_step)
            self._repeats.clear()
        if id(batches) not in self._known:
            self._add(batches)
        it, source = self._known[id(batches)]
        repeat = self._repeats[it] = self._repeats.get(it, -1) + 1
        return source, EvaluationKey(step=step, number=list(self._repeats).index(it), repeat=repeat)

    def _add(self, batches: Any) -> None:
        set_workers(batches, self._workers)
        is_dataloader, own = is_torch_loader(batches), batches
        if is_dataloader:
            # A copy: the script's is kept no longer than the script has it, since its workers would stay as well.
            own = object.__new__(type(batches))
            vars(own).update(vars(batches))
        self._known[id(batches)] = object(), EvaluationSource(own, self._assignment())
        if is_dataloader:
            self._alive[id(batches)] = weakref.ref(batches, functools.partial(self._forget, id(batches)))
            return
        self._kept.append(id(batches))
        if len(self._kept) > _MOST_KEPT:
            del self._known[self._kept.pop(0)]

    def _forget(self, identity: int, _: object) -> None:
        del self._known[identity], self._alive[identity]
