"""Evaluation on all processes, with the result of a single one.

The loader's batches stay whole, as on a single process, and are assigned to the processes in turn. The results of all
batches are gathered at the end and added in batch order, so the sum does not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lockstep.comm.collectives import Collectives
from lockstep.data.assignment import ShardAssignment
from lockstep.data.batches import count_samples, map_tensors, to_device
from lockstep.data.culprit import Culprit
from lockstep.data.evaluation_keys import FIRST_LOADER, EvaluationKey
from lockstep.data.fetch import FetchPool, Request, choose_fetcher, single_threaded
from lockstep.data.reader import StreamReader
from lockstep.data.streams import Purpose, preserve_rng, reseed
from lockstep.data.torch_loader import check_batches, is_torch_loader
from lockstep.data.values import mean_of
from lockstep.errors import ConfigError, DataError, UsageError
from lockstep.plan.shards import deal

Numbered = Iterator[tuple[int, int | None, Any]]
"""Batch number, number of samples if known, batch."""


class _DealingReader(StreamReader):
    """Collates this process's batches of a stream."""

    def __init__(self, loader: DataLoader[Any], assignment: ShardAssignment) -> None:
        super().__init__(loader, assignment.seed, Purpose.EVALUATE, (FIRST_LOADER, 0), assignment.rank)
        self._assignment = assignment
        self._ready = loader.batch_size is None

    def make(self, batch: int, parts: list[Any], first_sample: int) -> Numbered:
        if batch % self._assignment.world_size == self._assignment.rank:
            num_samples = 1 if self._ready else len(parts[0])
            positions = range(first_sample, first_sample + num_samples)
            yield batch, None if self._ready else num_samples, self.collate(parts[0], positions, batch)


class EvaluationSource:
    """This process's batches of an evaluation loader. Reused between evaluations, with its workers if they persist.

    Raises:
        DataError: the loader is already split over processes, or can be iterated only once.
    """

    def __init__(self, batches: Iterable[Any], assignment: ShardAssignment) -> None:
        check_batches(batches, "evaluate()", "evaluation")
        self._batches = batches
        self._assignment = assignment
        self._pool: FetchPool | None = None
        self._reader: StreamReader | None = None
        if is_torch_loader(batches):
            if isinstance(batches.dataset, IterableDataset):
                self._reader = _DealingReader(batches, assignment)
            else:
                self._pool = FetchPool(choose_fetcher(assignment.seed, batches, assignment.rank), batches)

    def deal(self, evaluation: EvaluationKey) -> Numbered:
        """This process's batches of one pass."""
        if self._reader is not None:
            self._reader.key = (evaluation.loader, 0)
            return self._reader.read(self._batches, 0, evaluation.step)  # type: ignore[arg-type]
        return self._deal_ready(evaluation) if self._pool is None else self._deal_indexed(evaluation, self._pool)

    def reseed(self, evaluation: EvaluationKey, batch: int) -> None:
        """Start the random stream of the script's code for a batch."""
        reseed(self._assignment.seed, Purpose.EVALUATE, evaluation.loader, batch, 1)

    def reseed_replay(self, evaluation: EvaluationKey) -> None:
        """Start the random stream in which metrics are updated."""
        reseed(self._assignment.seed, Purpose.EVALUATE, evaluation.loader, 0, 2)

    def _deal_indexed(self, evaluation: EvaluationKey, pool: FetchPool) -> Numbered:
        assignment, loader = self._assignment, self._batches
        assert isinstance(loader, DataLoader)
        reseed(assignment.seed, Purpose.SAMPLER, evaluation.loader, evaluation.step, evaluation.repeat)
        batches = list(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        mine = deal(len(batches), assignment.rank, assignment.world_size)
        requests = (Request(Purpose.EVALUATE, (evaluation.loader, batch, 0), batches[batch]) for batch in mine)
        for batch, fetched in zip(mine, pool.run(requests), strict=True):
            yield batch, None if loader.batch_sampler is None else len(batches[batch]), fetched

    def _deal_ready(self, evaluation: EvaluationKey) -> Numbered:
        assignment = self._assignment
        reseed(assignment.seed, Purpose.SAMPLER, evaluation.loader, evaluation.step, evaluation.repeat)
        batches, one_thread = iter(self._batches), single_threaded()
        for batch in itertools.count():
            reseed(assignment.seed, Purpose.EVALUATE, evaluation.loader, batch, 0)
            try:
                with one_thread:
                    data = next(batches, _END)
            except Exception as error:
                raise Culprit(self._batches, assignment.rank, is_ready=True).read(error, batch, Purpose.EVALUATE) from error
            if data is _END:
                return
            if batch % assignment.world_size == assignment.rank:
                yield batch, None, data


_END = object()


class Evaluation:
    """One evaluation: iterate it for this process's batches, ``add`` their results, read the averages after the block.

    ::

        with team.evaluate(model, test_loader) as batches:
            for images, labels in batches:
                logits = model(images)
                batches.add(loss=criterion(logits, labels), accuracy=logits.argmax(1) == labels)
        team.print(batches["loss"], batches["accuracy"])

    Inside the block the models are in evaluation mode and gradients are disabled; afterwards both are as before, and so are
    the random streams. The end of the block is a collective, which every rank must reach; it waits for the GPU.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        source: EvaluationSource,
        collectives: Collectives,
        device: torch.device,
        done: Callable[[dict[str, float]], None],
        evaluation: EvaluationKey,
        metrics: Sequence[Any] = (),
        *,
        together: bool = False,
    ) -> None:
        self._models = models
        self._source = source
        self._collectives = collectives
        self._device = device
        self._done = done
        self._evaluation = evaluation
        self._together = together
        """Whether every rank must run the model equally often, because its forward pass is a collective."""
        self._is_extra = False
        """Whether the current batch only serves that purpose, and its results are ignored."""
        self._batch: int | None = None
        self._num_samples: int | None = None
        self._added: list[tuple[int, str, Any, float]] = []
        self._updates: list[tuple[int, int, Any]] = []
        self._metrics: list[Any] = list(metrics)
        self._results: dict[str, float] | None = None
        self._stack: contextlib.ExitStack | None = None
        self._over = False

    def __enter__(self) -> Evaluation:
        if self._stack is not None:
            raise UsageError("an evaluation can be entered once: call team.evaluate() again for the next one")
        stack = contextlib.ExitStack()
        stack.enter_context(preserve_rng())
        for model in self._models:
            stack.callback(_set_modes, [(module, module.training) for module in model.modules()])
            model.eval()
        stack.enter_context(torch.no_grad())
        self._stack = stack
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._stack is not None
        self._over = True
        with self._stack:
            if kind is None:
                self._results = self._gather()
        if self._results is not None:
            self._done(self._results)

    def __iter__(self) -> Iterator[Any]:
        if self._stack is None or self._over:
            raise UsageError("iterate inside the block: `with team.evaluate(model, loader) as batches:`")
        try:
            batches = self._source.deal(self._evaluation)
            for number, num_samples, batch in self._in_step(batches) if self._together else batches:
                self._batch, self._num_samples = number, num_samples
                if num_samples is None:
                    with contextlib.suppress(DataError):
                        self._num_samples = count_samples(batch)
                batch = to_device(batch, self._device)
                self._source.reseed(self._evaluation, number)
                yield batch
        finally:
            self._batch, self._is_extra = None, False

    def _in_step(self, batches: Numbered) -> Numbered:
        """``batches``, extended to the largest number on any rank by repeating this rank's last one (or the very first)."""
        last: tuple[int, int | None, Any] | None = None
        while True:
            batch = next(batches, None)
            self._is_extra = batch is None
            if not self._collectives.all_reduce(torch.tensor(int(batch is not None)), "max"):
                return
            if last is None and self._collectives.all_reduce(torch.tensor(int(batch is None)), "max"):
                first = self._collectives.broadcast_object(batch)  # there are fewer batches than ranks
                last = first if batch is None else None
            last = batch or last
            assert last is not None
            yield last

    def add(self, *, weight: float | None = None, **values: Any) -> None:
        """Record results of the current batch. Local.

        Args:
            weight: the batch's weight in the average; None: its number of samples.
            values: each a number or a tensor: the batch's average, or one value per sample (which are averaged).

        Raises:
            UsageError: outside of the loop over batches.
            ConfigError: no weight is given, and the number of samples cannot be determined.
        """
        if self._batch is None:
            raise UsageError("add() belongs in the loop over the evaluation's batches")
        if self._is_extra:
            return
        if weight is None:
            weight = self._num_samples
        if weight is None:
            raise ConfigError("the number of samples in this batch is unknown: give add(..., weight=number of samples)")
        for name, value in values.items():
            self._added.append((self._batch, name, mean_of(name, value), float(weight)))

    def update(self, metric: Any, *args: Any) -> None:
        """Schedule ``metric.update(*args)`` for the end of the block, on every rank and in batch order. Local.

        So a metric object (of torchmetrics, say) ends up on every rank as if it had seen the whole loader. The synchronization
        in ``compute()`` of torchmetrics is disabled, since it would count every batch once per rank.
        """
        if self._batch is None:
            raise UsageError("update() belongs in the loop over the evaluation's batches")
        if self._is_extra:
            return
        index = next((i for i, known in enumerate(self._metrics) if known is metric), len(self._metrics))
        if index == len(self._metrics):
            self._metrics.append(metric)
        self._updates.append((self._batch, index, map_tensors(_keep, args)))

    def __getitem__(self, name: str) -> float:
        """The weighted average of a value over the whole loader, the same on every rank."""
        if name not in self.results:
            available = ", ".join(self.results) or "nothing"
            raise KeyError(f"{name!r} was not added in this evaluation; available: {available}")
        return self.results[name]

    @property
    def results(self) -> Mapping[str, float]:
        """All averages, by name."""
        if self._results is None:
            raise UsageError("results are available after the `with` block")
        return self._results

    def _gather(self) -> dict[str, float]:
        # The only place that waits for values on a GPU.
        mine = [(batch, name, float(value), weight) for batch, name, value, weight in self._added]
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        everyone = itertools.chain.from_iterable(self._collectives.all_gather_object(mine))
        for _, name, value, weight in sorted(everyone, key=lambda record: record[0]):
            # A value of weight 0 is left out, even if it is NaN (a mean over nothing).
            sums[name] = sums.get(name, 0.0) + (value * weight if weight else 0.0)
            weights[name] = weights.get(name, 0.0) + weight
        self._replay_updates()
        return {name: sums[name] / weights[name] if weights[name] else float("nan") for name in sums}

    def _replay_updates(self) -> None:
        """Update the metrics on every rank, batch by batch. Each round gathers one batch from each rank, in rank order."""
        size, rank = self._collectives.size, self._collectives.rank
        last = max((batch for batch, _, _ in self._updates), default=-1)
        everyone = self._collectives.all_gather_object((last, [type(metric).__name__ for metric in self._metrics]))
        num_batches = max(last for last, _ in everyone) + 1
        if num_batches and any(known != everyone[0][1] for _, known in everyone):
            by_rank = ", ".join(f"rank {number}: {known or 'none'}" for number, (_, known) in enumerate(everyone))
            raise UsageError(
                f"the ranks have not updated the same metrics in the same order ({by_rank}), because their batches were "
                "different or fewer: name the metrics, team.evaluate(model, loader, metrics=[...])"
            )
        for metric in self._metrics:
            _disable_sync(metric)
        self._source.reseed_replay(self._evaluation)
        for first in range(0, num_batches, size):
            mine = [(index, args) for batch, index, args in self._updates if batch == first + rank]
            for index, args in itertools.chain.from_iterable(self._collectives.all_gather_object(mine)):
                self._metrics[index].update(*map_tensors(lambda tensor: tensor.to(self._device), args))


def _set_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    # Submodules have modes of their own: a frozen part may be in evaluation mode while the rest is trained.
    root, mode = modes[0]
    root.train(mode)
    for module, mode in modes[1:]:
        module.training = mode


def _disable_sync(metric: Any) -> None:
    """Keep a torchmetrics metric from summing over ranks in ``compute()``: each rank has seen every batch."""
    for part in metric.modules() if isinstance(metric, nn.Module) else [metric]:
        if hasattr(part, "distributed_available_fn"):
            part.distributed_available_fn = _never


def _never() -> bool:
    return False


def _keep(tensor: Tensor) -> Tensor:
    # A copy: the script may overwrite its tensor, and pickling a view would send its whole base.
    return tensor.detach().to("cpu", copy=True)
