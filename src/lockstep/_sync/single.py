"""The strategy for a single process, which runs all shards itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._plan.shards import MicroBatch, StepPlan
from lockstep._sync.news import NOTHING, News
from lockstep._sync.protocol import PhaseSums, Strategy
from lockstep._sync.sharded import ShardedStrategy
from lockstep._world.comm.group import Transport


class SingleStrategy(ShardedStrategy):
    """The strategy ``single``. With one shard, a step is bit-identical with a step of a plain
    single-device loop.

    Args:
        num_shards: V of the run.
        accumulate: global batches of a step.
    """

    def __init__(self, num_shards: int, accumulate: int = 1) -> None:
        super().__init__(num_shards)
        self.is_plain = num_shards == 1 == accumulate
        self._plain = PlainSums()

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        return model if self.is_plain else super().attach(model)

    @override
    def open(self, plan: StepPlan, phase: int) -> PhaseSums:
        return self._plain if self.is_plain else super().open(plan, phase)


class PlainSums(PhaseSums):
    """The sums of a single shard, which are where autograd and the forward pass have left them."""

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        pass

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        loss.backward(**options)  # type: ignore[no-untyped-call]

    @override
    def end_shard(self) -> None:
        pass

    @override
    def news(self) -> News:
        return NOTHING

    @override
    def gather(self, row: list[float]) -> None:
        return None

    @override
    def finish(self, divisors: Sequence[float | None], news: News) -> None:
        pass

    @override
    def abandon(self) -> None:
        pass


def make(config: RunConfig, num_shards: int, transport: Transport, devices: tuple[torch.device, ...]) -> Strategy:
    """Creates the strategy for ``sync.table.make_strategy``."""
    return SingleStrategy(num_shards, config.accumulate)
