"""Metric objects that are finally on every rank as if each had seen the whole evaluation loader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lockstep._base.errors import UsageError
from lockstep._data.batches import map_tensors
from lockstep._data.shared import keep
from lockstep._world.comm.collectives import Collectives


class MetricUpdates:
    """The updates of metrics on this process, for a replay on every rank.

    The replay gives a metric all batches in order, as on one process. Combining the states of W
    metrics would need rules for each class, and sums of floats would depend on W.

    Args:
        metrics: the metrics that every rank knows already.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        self._metrics = list(metrics)
        self._updates: list[tuple[tuple[int, int], int, Any]] = []

    def add(self, place: tuple[int, int], metric: Any, args: tuple[Any, ...]) -> None:
        """Records an update. ``place``: the number of the batch, and of the pass over it."""
        index = next((i for i, known in enumerate(self._metrics) if known is metric), len(self._metrics))
        if index == len(self._metrics):
            self._metrics.append(metric)
        self._updates.append((place, index, keep(args, "batch.update()")))

    def replay(
        self, requested: set[tuple[int, int]], collectives: Collectives, device: torch.device, begin: Callable[[], None]
    ) -> None:
        """Updates the metrics on every rank, batch by batch. Every rank must call it. Each round
        gathers one batch from each rank, in rank order.

        Args:
            requested: the places whose updates count.
            collectives: over all ranks.
            device: where the metrics get tensors.
            begin: called before the first update.

        Raises:
            UsageError: the ranks know different metrics.
        """
        size, rank = collectives.size, collectives.rank
        updates = [(batch, index, args) for (batch, turn), index, args in self._updates if (batch, turn) in requested]
        last = max((batch for batch, _, _ in updates), default=-1)
        known_here = [type(metric).__name__ for metric in self._metrics]
        everyone = collectives.all_gather_plain((last, known_here))
        num_batches = max(last for last, _ in everyone) + 1
        if num_batches and any(known != everyone[0][1] for _, known in everyone):
            by_rank = ", ".join(f"rank {number}: {known or 'none'}" for number, (_, known) in enumerate(everyone))
            raise UsageError(
                f"ranks updated different metrics, or in a different order ({by_rank}). Name them: "
                "team.evaluate(model, loader, metrics=[...]).",
                code="metrics-differ",
            )
        for metric in self._metrics:
            _disable_sync(metric)
        begin()
        for first in range(0, num_batches, size):
            mine = [(index, args) for batch, index, args in updates if batch == first + rank]
            for index, args in itertools.chain.from_iterable(collectives.all_gather_object(mine)):
                self._metrics[index].update(*map_tensors(lambda tensor: tensor.to(device), args))


def _disable_sync(metric: Any) -> None:
    """Prevents a torchmetrics metric from summing over ranks in ``compute()``: each rank has seen
    every batch."""
    for part in metric.modules() if isinstance(metric, nn.Module) else [metric]:
        if hasattr(part, "distributed_available_fn"):
            part.distributed_available_fn = _never


def _never() -> bool:
    return False
