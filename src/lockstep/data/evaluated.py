"""The loaders on which a run evaluates."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from lockstep.data.assignment import ShardAssignment
from lockstep.data.evaluation_source import EvaluationKey, EvaluationSource
from lockstep.data.fetch import set_workers
from lockstep.data.loader import PreparedLoader
from lockstep.data.torch_loader import is_torch_loader

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
        """By ``id``: the loader, unless it is in ``_alive``, and its source."""
        self._alive: dict[int, weakref.ref[Any]] = {}
        """The DataLoaders that the script has, as far as they were evaluated on, by ``id``."""
        self._since: tuple[int, bool] = (0, False)
        """The steps taken before the newest evaluation, and whether it was within a step."""
        self._repeats: dict[object, int] = {}
        """The ``repeat`` of the newest evaluation since then, by ``id`` of its loader, in the order of the loaders' first."""

    def next(self, loader: Any, step: int, *, in_step: bool) -> tuple[EvaluationSource, EvaluationKey]:
        """The source and the key of the next evaluation.

        Args:
            loader: the loader to evaluate on.
            step: steps taken so far.
            in_step: whether the evaluation is inside the body of a loop over a training loader.
        """
        batches = loader.wrapped if isinstance(loader, PreparedLoader) else loader
        identity = id(batches)
        if (step, in_step) != self._since:
            self._since = (step, in_step)
            self._repeats.clear()
        if identity in self._cache:
            self._cache[identity] = self._cache.pop(identity)
        else:
            set_workers(batches, self._workers)
            own = self._own(batches)
            self._cache[identity] = (None if identity in self._alive else batches, EvaluationSource(own, self._assignment()))
            alike = [known for known in self._cache if (known in self._alive) == (identity in self._alive)]
            for oldest in alike[:-_MAX_CACHED]:  # a script may create a loader for every evaluation
                if oldest in self._alive:
                    del self._cache[oldest]
                else:
                    self._forget(oldest)
        repeat = self._repeats[identity] = self._repeats.get(identity, -1) + 1
        key = EvaluationKey(step=step, number=list(self._repeats).index(identity), repeat=repeat)
        return self._cache[identity][1], key

    def _own(self, batches: Any) -> Any:
        """The loader for the source. Of a DataLoader, a copy: the script's is kept no longer than the script has it, since its
        workers would stay as well."""
        if not is_torch_loader(batches):
            return batches
        identity, own = id(batches), object.__new__(type(batches))
        vars(own).update(vars(batches))
        self._alive[identity] = weakref.ref(batches, lambda _: self._forget(identity))
        return own

    def _forget(self, identity: int) -> None:
        """Drop a loader that the script has dropped, or one that was evaluated on least recently. Its ``id`` may be that of
        another one from now on, but differs between ranks, so none may be taken for it."""
        self._cache.pop(identity, None)
        self._alive.pop(identity, None)
        self._repeats = {object() if key == identity else key: repeat for key, repeat in self._repeats.items()}
