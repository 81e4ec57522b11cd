"""The loaders and batches that Lightning's loops get: batches of all processes, whose samples are
the steps' only."""

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
    """A batch as Lightning hands it from its loops to hooks and steps. Only the strategy opens it.

    Args:
        inner: lockstep's batch.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @override
    def refuse(self, use: str) -> NoReturn:
        raise UsageError(
            f"{use}: hooks such as on_train_batch_start and on_validation_batch_end get the batch of all processes, "
            "of which no "
            "process has all samples. Use the samples in training_step, validation_step, test_step or predict_step, or in "
            "on_before_batch_transfer and on_after_batch_transfer: these get one shard (in an evaluation, one batch)."
        )

    def __getitem__(self, key: Any) -> NoReturn:
        self.refuse(f"batch[{key!r}]")

    def __repr__(self) -> str:
        return f"HostBatch({self.inner!r})"


class TrainLoader:
    """A prepared loader, for Lightning's training loop.

    Args:
        prepared: the loader.
    """

    sampler = batch_sampler = None
    """None: Lightning sets an epoch on these, which lockstep does itself."""

    def __init__(self, prepared: PreparedLoader) -> None:
        self.prepared = prepared

    @property
    def dataset(self) -> Any:
        """The script's data set."""
        wrapped: Any = self.prepared.wrapped
        return wrapped.dataset

    def __len__(self) -> int:
        return len(self.prepared)

    def __iter__(self) -> Iterator[HostBatch]:
        return map(HostBatch, self.prepared)


class EvaluationLoader:
    """A loader of an evaluation, for Lightning's evaluation loops.

    Args:
        loader: the script's loader.
        evaluations: begins an evaluation when the first batch is asked for.
    """

    sampler = None

    def __init__(self, loader: Any, evaluations: Evaluations) -> None:
        self.loader = loader
        self.batch_sampler = host.noting_sampler(loader)
        """Lightning reads the indices of predictions from it; None: they are unknown."""
        self._evaluations = evaluations

    @property
    def dataset(self) -> Any:
        """The script's data set."""
        return self.loader.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[HostBatch]:
        indices = iter(()) if self.batch_sampler is None else iter(self.batch_sampler)
        for batch in self._evaluations.begin(self.loader):
            next(indices, None)  # notes them
            yield HostBatch(batch)


class Evaluations:
    """The evaluation that is under way, if any.

    Args:
        team: of the run.
    """

    def __init__(self, team: Team) -> None:
        self.model: Any = None
        """The model of the next evaluation."""
        self.at_once = True
        """Whether as many batches as there are processes are evaluated at once, in the next
        evaluation. Else they are evaluated one after another, for hooks that run between two
        batches."""
        self._team = team
        self._open: Any = None

    def begin(self, loader: Any) -> Iterator[Any]:
        """Begin an evaluation of a loader, and end the one before. Every rank must call it."""
        self.end()
        evaluation = self._team.evaluate(self.model, loader, share=self.at_once)
        self._open = evaluation.__enter__()
        return iter(evaluation)

    def run(self, batch: Any) -> Iterator[tuple[int, int | None, Any]]:
        """The batch that this process has to run now, if any: its number, its number of samples
        (None: unknown), its samples."""
        for samples in batch.shards:
            yield (*batch.running, samples)

    def exchange(self, batch: Any, mine: Any) -> Any:
        """What the process that has run a batch has noted of it, on every rank. Every rank must
        call it, after ``run``.

        Args:
            batch: the batch.
            mine: what this process has noted in ``run``; None: it had no batch. (With ``at_once``
                it has shared it by ``share``.)
        """
        if self.at_once:
            [noted] = batch.shared()
            return noted
        [noted] = [each for each in self._team.all_gather_object(mine) if each is not None]
        return noted

    def end(self, error: BaseException | None = None) -> None:
        """End the evaluation, if one is under way. Every rank must call it, unless there is an
        error."""
        evaluation, self._open = self._open, None
        if evaluation is None:
            return
        if error is None:
            evaluation.__exit__(None, None, None)
            return
        with contextlib.suppress(Exception):  # the error itself is what the user is to see
            evaluation.__exit__(type(error), error, error.__traceback__)
