"""The loaders and batches in Lightning's loops. The batches are global, and only steps get their
samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from typing_extensions import override

from lockstep import Team
from lockstep._base.errors import UsageError
from lockstep._data.batch import GlobalBatch
from lockstep._data.loader import PreparedLoader
from lockstep.integrations.lightning import _host as host


class HostBatch(GlobalBatch):
    """A batch that Lightning passes from its loops to hooks and steps. Only the strategy opens it.

    Args:
        inner: lockstep's batch.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @override
    def refuse(self, use: str) -> NoReturn:
        raise UsageError(
            f"{use} is not supported in hooks such as on_train_batch_start and on_validation_batch_end: no process has all "
            "samples of the global batch. Use samples in a step, on_before_batch_transfer or on_after_batch_transfer, which "
            "get one shard (in an evaluation, one batch).",
            code="samples-in-hook",
        )

    def __getitem__(self, key: Any) -> NoReturn:
        self.refuse(f"batch[{key!r}]")

    def __repr__(self) -> str:
        return f"HostBatch({self.inner!r})"


class TrainLoader:
    """A prepared loader for Lightning's training loop.

    Args:
        prepared: the prepared loader.
    """

    sampler = batch_sampler = None
    """No samplers, since Lightning would set their epoch, which lockstep does."""

    def __init__(self, prepared: PreparedLoader) -> None:
        self.prepared = prepared

    @property
    def dataset(self) -> Any:
        """The script's dataset."""
        wrapped: Any = self.prepared.wrapped
        return wrapped.dataset

    def __len__(self) -> int:
        return len(self.prepared)

    def __iter__(self) -> Iterator[HostBatch]:
        return map(HostBatch, self.prepared)


class EvaluationLoader:
    """A loader for Lightning's evaluation loops.

    Args:
        loader: the script's loader.
        evaluations: the evaluations, of which one begins with each iteration.
    """

    sampler = None

    def __init__(self, loader: Any, evaluations: Evaluations) -> None:
        self.loader = loader
        self.batch_sampler = host.noting_sampler(loader)
        """The sampler from which Lightning reads the indices of predictions; None: they are
        unknown."""
        self._evaluations = evaluations

    @property
    def dataset(self) -> Any:
        """The script's dataset."""
        return self.loader.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[HostBatch]:
        indices = iter(()) if self.batch_sampler is None else iter(self.batch_sampler)
        for batch in self._evaluations.begin(self.loader):
            next(indices, None)  # The sampler records the indices for Lightning.
            yield HostBatch(batch)


class Evaluations:
    """The current evaluation, if there is one.

    Args:
        team: the team of this process.
    """

    def __init__(self, team: Team) -> None:
        self.model: Any = None
        """The model of the next evaluation."""
        self.concurrent = True
        """Whether the processes evaluate different batches at the same time in the next evaluation.
        Otherwise, batches are evaluated one after another, because a hook runs between them."""
        self._team = team
        self._open: Any = None

    def begin(self, loader: Any) -> Iterator[Any]:
        """Ends the current evaluation and begins one of a loader. Every rank must call it."""
        self.end()
        evaluation = self._team.evaluate(self.model, loader, share=self.concurrent)
        self._open = evaluation.__enter__()
        return iter(evaluation)

    def run(self, batch: Any) -> Iterator[tuple[int, int | None, Any]]:
        """Yields the batch that this process must evaluate now, if any: its number, its number of
        samples (None: unknown), its samples."""
        for samples in batch.shards:
            yield (*batch.running, samples)

    def exchange(self, batch: Any, mine: Any) -> Any:
        """Returns, on every rank, the record of the process that evaluated a batch. Every rank must
        call it after ``run``.

        Args:
            batch: the batch.
            mine: the record of this process from ``run``; None: it had no batch. If ``concurrent``,
                the process has passed it to ``batch.share`` already.
        """
        if self.concurrent:
            [noted] = batch.shared()
            return noted
        [noted] = [each for each in self._team.all_gather_object(mine) if each is not None]
        return noted

    def end(self, error: BaseException | None = None) -> None:
        """Ends the current evaluation, if there is one. Every rank must call it, unless there is an
        error."""
        evaluation, self._open = self._open, None
        if evaluation is None:
            return
        if error is None:
            evaluation.__exit__(None, None, None)
            return
        with contextlib.suppress(Exception):  # The user must see the first error.
            evaluation.__exit__(type(error), error, error.__traceback__)
