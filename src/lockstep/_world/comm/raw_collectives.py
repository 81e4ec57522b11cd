"""Collectives that the script calls by itself, through ``torch.distributed``, while shards run: of
training (``RawCollectives``), or of an evaluation (``EvaluationCollectives``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from lockstep._base.errors import UsageError
from lockstep._listener import Listener
from lockstep._plan.shards import MicroBatch
from lockstep._world.comm.collectives import Collectives


class RawCollectives(Listener):
    """A listener that refuses such collectives: they would combine whichever shards the processes
    run just then, or wait for a process that has fewer.

    PyTorch has no hook for calls of collectives, but numbers the calls of a group. So they are
    noticed after the fact, before the shard's backward pass or at its end. For strategies whose
    forward passes and shards send nothing by themselves.

    Args:
        collectives: of the default group, which scripts use unless they say otherwise.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._count: Callable[[], int] = _none
        """Returns the number of the group's collectives so far. It keeps the group
        alive, so it is forgotten when the run ends."""
        self._num_before = 0
        self._micro: MicroBatch | None = None

    @override
    def begin_phase(self, phase: int) -> None:
        # once, since each micro-batch asks it four times
        self._count = _counter_of(self._collectives.group)

    @override
    def received(self, micro: MicroBatch, data: Any) -> None:
        # Counted from here: where two loaders are run side by side, an audit may ask the other
        # ranks before this.
        self._micro = micro
        self._num_before = self._count()

    @override
    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        if self._count() != self._num_before:  # now, since the backward pass may send gradients
            self._refuse()

    @override
    def after_backward(self) -> None:
        self._num_before = self._count()

    @override
    def end_shard(self) -> None:
        if self._count() != self._num_before:
            self._refuse()

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        self._count = _none

    def _refuse(self) -> NoReturn:
        micro = self._micro
        assert micro is not None
        raise UsageError(
            f"a collective of torch.distributed was called inside batch.shards, in step {micro.step}, "
            f"shard {micro.shard}. There it combines only the shards that run at that moment, so "
            "results would depend on the number of processes, and ranks may hang. For means use "
            "batch.add(name=value). For losses over the global batch, collect inside the loop and "
            "call team.all_gather_object() or team.all_reduce() after it.",
            code="collective-inside-shards",
        )


class EvaluationCollectives:
    """Refuses such collectives in the shards of an evaluation, where only the process that owns a
    batch runs. They are noticed when the shard ends. For models whose forward passes send nothing
    by themselves.

    Args:
        collectives: of the default group, as for ``RawCollectives``.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._num_before = 0

    def begin_shard(self) -> None:
        """The script is about to receive the samples of a batch."""
        self._num_before = num_collectives(self._collectives.group)

    def end_shard(self, batch: int) -> None:
        """The script has run the batch of this number.

        Raises:
            UsageError: it has called a collective.
        """
        if num_collectives(self._collectives.group) == self._num_before:
            return
        raise UsageError(
            f"a collective of torch.distributed was called inside batch.shards, in batch {batch} of an evaluation. There "
            "only the process that owns the batch runs: the collective combines whichever batches run at that moment, so "
            "results would depend on the number of processes, and ranks may hang. For averages use batch.add(name=value), and "
            "evaluation['name'] after the `with` block. For metric objects use batch.update(metric, ...). For anything else, "
            "collect inside the loop and call team.all_gather_object() after the block.",
            code="collective-inside-evaluation-shards",
        )


def num_collectives(group: dist.ProcessGroup) -> int:
    """The number of collectives that this process has started in a group. (Messages to single ranks
    do not count, nor do the collectives of backends that do not number them.)"""
    return _counter_of(group)()


def _counter_of(group: dist.ProcessGroup) -> Callable[[], int]:
    """The function that returns ``num_collectives`` of a group. (PyTorch has no public name for
    it.)"""
    count: Callable[[], int] = group._get_sequence_number_for_group  # type: ignore[attr-defined]
    try:
        count()
    except RuntimeError:
        return _none
    return count


def _none() -> int:
    return 0
