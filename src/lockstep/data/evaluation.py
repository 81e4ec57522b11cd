"""Evaluation over all processes, with the result of one.

The loader's batches stay whole, as a single process would have them, and are dealt out to the processes in turn. What each
batch gave is brought together at the end and added up in batch order, so the result does not depend on how many there are.
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
from lockstep.data.batches import count_samples, map_tensors, to_device
from lockstep.data.fetch import FetchPool, Request, choose_fetcher, single_threaded
from lockstep.data.sources import Share
from lockstep.data.streams import Purpose
from lockstep.errors import ConfigError, DataError, UsageError
from lockstep.plan.shards import deal

Numbered = Iterator[tuple[int, int | None, Any]]
"""Batch number, number of samples if known, batch."""


class EvaluationSource:
    """This process's batches of an evaluation loader. Kept between evaluations, with its workers if they persist."""

    def __init__(self, batches: Iterable[Any], share: Share) -> None:
        self._batches = batches
        self._share = share
        self._passes = itertools.count()
        self._pool: FetchPool | None = None
        self._indexed = (
            isinstance(batches, DataLoader)
            and batches.batch_sampler is not None
            and not isinstance(batches.dataset, IterableDataset)
        )
        if self._indexed:
            assert isinstance(batches, DataLoader)
            self._pool = FetchPool(choose_fetcher(share.seed, batches.dataset, batches.collate_fn), batches)

    def deal(self) -> Numbered:
        """One pass."""
        number = next(self._passes)
        return self._deal_indexed(number) if self._indexed else self._deal_ready(number)

    def reseed(self, batch: int) -> None:
        """Start the stream of the evaluation code of a batch."""
        self._share.reseed(Purpose.EVALUATE, batch, 1)

    def _deal_indexed(self, number: int) -> Numbered:
        share, pool = self._share, self._pool
        assert pool is not None
        share.reseed(Purpose.SAMPLER, number)
        batches = list(self._batches.batch_sampler)  # type: ignore[attr-defined]
        mine = deal(len(batches), share.rank, share.world_size)
        requests = (Request(Purpose.EVALUATE, (share.loader, batch, 0), batches[batch]) for batch in mine)
        for batch, fetched in zip(mine, pool.run(requests), strict=True):
            yield batch, len(batches[batch]), fetched

    def _deal_ready(self, number: int) -> Numbered:
        share = self._share
        share.reseed(Purpose.SAMPLER, number)
        batches = iter(self._batches)
        for batch in itertools.count():
            share.reseed(Purpose.EVALUATE, batch, 0)
            with single_threaded():
                found = next(batches, _END)
            if found is _END:
                return
            if batch % share.world_size == share.rank:
                yield batch, None, found


_END = object()


class Evaluation:
    """One evaluation: iterate it for this process's batches, ``add`` what each gave, and read the results after the block.

    ::

        with team.evaluate(model, test_loader) as batches:
            for images, labels in batches:
                logits = model(images)
                batches.add(loss=criterion(logits, labels), accuracy=logits.argmax(1) == labels)
        team.print(batches["loss"], batches["accuracy"])

    Inside the block the models are in evaluation mode and gradients are off; after it they are as before. The end of the
    block is a collective: every rank must come to it.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        source: EvaluationSource,
        collectives: Collectives,
        device: torch.device,
        done: Callable[[dict[str, float]], None],
        metrics: Sequence[Any] = (),
    ) -> None:
        self._models = models
        self._source = source
        self._collectives = collectives
        self._device = device
        self._done = done
        self._batch: int | None = None
        self._num_samples: int | None = None
        self._added: list[tuple[int, str, Any, float]] = []
        self._updates: list[tuple[int, int, Any]] = []
        self._metrics: list[Any] = list(metrics)
        self._results: dict[str, float] | None = None
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> Evaluation:
        if self._stack is not None:
            raise UsageError("an evaluation can be entered once: call team.evaluate() again for the next one")
        stack = contextlib.ExitStack()
        for model in self._models:
            stack.callback(model.train, model.training)
            model.eval()
        stack.enter_context(torch.no_grad())
        self._stack = stack
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._stack is not None
        self._stack.close()
        if kind is None:
            self._results = self._bring_together()
            self._done(self._results)

    def __iter__(self) -> Iterator[Any]:
        if self._stack is None:
            raise UsageError("iterate inside the block: `with team.evaluate(model, loader) as batches:`")
        for number, num_samples, batch in self._source.deal():
            self._batch, self._num_samples = number, num_samples
            if num_samples is None:
                with contextlib.suppress(DataError):
                    self._num_samples = count_samples(batch)
            batch = to_device(batch, self._device)
            self._source.reseed(number)
            yield batch
        self._batch = None

    def add(self, *, weight: float | None = None, **values: Any) -> None:
        """Note what the batch at hand gave. Local.

        Args:
            weight: the batch's weight in the average; None: its number of samples.
            values: each a number or tensor: the batch's average, or one value a sample (then they are averaged).
        """
        if self._batch is None:
            raise UsageError("add() belongs into the loop over the evaluation's batches")
        if weight is None:
            weight = self._num_samples
        if weight is None:
            raise ConfigError("how many samples this batch has cannot be seen: give add(..., weight=number of samples)")
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach().double().mean()
            self._added.append((self._batch, name, value, float(weight)))

    def update(self, metric: Any, *args: Any) -> None:
        """Have ``metric.update(*args)`` called, on every rank, with this batch's arguments and in batch order. Local.

        So any metric object (one of torchmetrics', say) ends up on every rank as if it had seen the whole loader.
        """
        if self._batch is None:
            raise UsageError("update() belongs into the loop over the evaluation's batches")
        if not any(metric is known for known in self._metrics):
            self._metrics.append(metric)
        index = next(i for i, known in enumerate(self._metrics) if known is metric)
        self._updates.append((self._batch, index, map_tensors(lambda tensor: tensor.detach().cpu(), args)))

    def __getitem__(self, name: str) -> float:
        """The weighted average of a value over the whole loader. The same on every rank."""
        if self._results is None:
            raise UsageError("the results are there after the `with` block")
        if name not in self._results:
            raise KeyError(f"{name!r} was not added in this evaluation; there is: {', '.join(self._results) or 'nothing'}")
        return self._results[name]

    @property
    def results(self) -> Mapping[str, float]:
        """All averages, by name."""
        if self._results is None:
            raise UsageError("the results are there after the `with` block")
        return self._results

    def _bring_together(self) -> dict[str, float]:
        # Numbers leave a card only here, all at once.
        mine = [(batch, name, float(value), weight) for batch, name, value, weight in self._added]
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        everyone = itertools.chain.from_iterable(self._collectives.all_gather_object(mine))
        for _, name, value, weight in sorted(everyone, key=lambda record: record[0]):
            sums[name] = sums.get(name, 0.0) + value * weight
            weights[name] = weights.get(name, 0.0) + weight
        self._replay_updates()
        return {name: sums[name] / weights[name] if weights[name] else float("nan") for name in sums}

    def _replay_updates(self) -> None:
        """Call the metrics on every rank, batch by batch: a round brings one batch of each rank, in rank order."""
        size, rank = self._collectives.size, self._collectives.rank
        last = max((batch for batch, _, _ in self._updates), default=-1)
        for first in range(0, max(self._collectives.all_gather_object(last)) + 1, size):
            mine = [(index, args) for batch, index, args in self._updates if batch == first + rank]
            for index, args in itertools.chain.from_iterable(self._collectives.all_gather_object(mine)):
                if index >= len(self._metrics):
                    raise UsageError(
                        f"rank {rank} had no batch in this evaluation, so it does not know its metrics: name them, "
                        "team.evaluate(model, loader, metrics=[...])"
                    )
                self._metrics[index].update(*map_tensors(lambda tensor: tensor.to(self._device), args))
