"""The base classes of strategies with a plain sum: they sum a process's shards before anything is
sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from typing_extensions import override

from lockstep._plan.shards import MicroBatch, StepPlan, num_filled
from lockstep._sync.buffers import ShardBuffers, add_changes
from lockstep._sync.gradients import Gradients, add_weighted, usable
from lockstep._sync.news import News
from lockstep._sync.protocol import PhaseSums, Strategy


class ShardedStrategy(Strategy):
    """A strategy that sums a process's shards; a subclass reduces the sums over processes."""

    forward_is_collective = False
    is_plain = False
    waited_s = waited_in_forward_s = 0.0
    times_forward = True

    def __init__(self, num_shards: int, world_size: int = 1) -> None:
        self.replaced: dict[Parameter, Parameter] = {}
        self.num_shards = num_shards
        self.world_size = world_size
        self.parameters: list[Parameter] = []
        """The parameters of all models."""
        self.buffers = ShardBuffers()
        self.changing: set[int] = set()
        """The numbers of the modules whose buffers any shard has changed; the same on every
        rank."""

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        attached = set(self.parameters)
        self.parameters.extend(parameter for parameter in model.parameters() if parameter not in attached)
        forward = self._replicate(model)
        self.buffers.attach(model)
        return forward

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        """Copies the model from rank 0 to every rank, and returns the callable for its forward
        pass. Here the only process has it already."""
        return model

    @override
    def open(self, plan: StepPlan, phase: int) -> PhaseSums:
        return ShardedSums(self, plan)

    @override
    def close(self) -> None:
        pass


class ShardedSums(PhaseSums):
    """The sums of one process, the only one; a subclass reduces them over processes.

    Args:
        strategy: opens the phase.
        plan: of the step.
    """

    def __init__(self, strategy: ShardedStrategy, plan: StepPlan) -> None:
        self._strategy = strategy
        self._buffers, self._parameters = strategy.buffers, strategy.parameters
        self._plan = plan
        self._micro: MicroBatch | None = None
        self._changes: dict[int, Tensor] = {}
        """The sums of this process's shards' changes of buffers."""
        self._sums: dict[int, Gradients] = {}
        """The weighted sums over the shards that have run, by backward call. Calls (for two losses,
        for example) may have weights of different kinds: the first calls of all shards are summed
        together, and so are the second ones."""
        self._buffers.begin_phase(num_filled(plan.sizes, strategy.num_shards))

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        self._micro = micro

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        with self._buffers.restored_after():
            loss.backward(**options)  # type: ignore[no-untyped-call]
        add_weighted(self._parameters, self._sums.setdefault(call, {}), usable(factor, self._parameters))

    @override
    def end_shard(self) -> None:
        micro, self._micro = self._micro, None
        assert micro is not None
        changes = self._buffers.end_shard(micro)
        if changes is not None:
            add_changes(self._changes, changes)

    @override
    def news(self) -> News:
        new = [number for number in sorted(self._changes) if number not in self._strategy.changing]
        return News(modules=new, looks=self._buffers.looks())

    @override
    def gather(self, row: list[float]) -> list[list[float]] | None:
        return None

    @override
    def finish(self, divisors: Sequence[float | None], news: News) -> None:
        gradients: Gradients = {}
        for call, divisor in enumerate(divisors):
            for parameter, gradient in self._reduce(call).items():
                if divisor is not None:
                    gradient.div_(divisor)
                earlier = gradients.get(parameter)
                gradients[parameter] = gradient if earlier is None else earlier.add_(gradient)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient.to(parameter.dtype)
        self._strategy.changing.update(news.modules)
        self._buffers.apply(self._sum_changes())
        self._buffers.warn_of_lost_changes(news.looks)

    def _reduce(self, call: int) -> Gradients:
        """Returns the weighted sums of a backward call over all shards of all ranks, not yet in the
        parameters' dtype. Here they are the sums of the only process.

        Called on every rank for every call that any rank made.
        """
        return self._sums.pop(call, {})

    @torch.no_grad()
    def _sum_changes(self) -> dict[int, Tensor]:
        """Returns the changes of buffers summed over all ranks. Every rank must call it."""
        sums: dict[int, Tensor] = {}
        for numbers in self._buffers.by_device(self._strategy.changing):
            changes = [self._changes[n] if n in self._changes else self._buffers.absent(n) for n in numbers]
            if self._strategy.world_size > 1:
                flat = torch.cat(changes)
                dist.all_reduce(flat)
                changes = list(torch.split(flat, [change.numel() for change in changes]))
            sums.update(zip(numbers, changes, strict=True))
        return sums

    @override
    def abandon(self) -> None:
        self._buffers.rewind()
