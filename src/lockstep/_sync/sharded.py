"""The base class of strategies with a plain sum: sums a process's shards before anything is
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
from lockstep._sync.protocol import Sync


class ShardedSync(Sync):
    """A strategy that sums a process's shards; a subclass reduces the sums over processes."""

    forward_is_collective = False
    is_plain = False
    waited_s = waited_in_forward_s = 0.0
    times_forward = True

    def __init__(self, num_shards: int, world_size: int = 1) -> None:
        self.replaced: dict[Parameter, Parameter] = {}
        self._num_shards = num_shards
        self._world_size = world_size
        self._parameters: list[Parameter] = []
        self.buffers = ShardBuffers()
        self._changing: set[int] = set()
        """The numbers of the modules whose buffers any shard has changed; the same on every
        rank."""
        self._changes: dict[int, Tensor] = {}
        """The sums of this process's shards' changes in the current phase."""
        self._sums: dict[int, Gradients] = {}
        """The weighted sums over the shards that have run, by backward call. Calls (for two losses,
        for example) may have weights of different kinds: the first calls of all shards are summed
        together, and so are the second ones."""
        self._plan: StepPlan | None = None
        self._phase = 0
        self._micro: MicroBatch | None = None

    @override
    def attach(self, model: nn.Module) -> Callable[..., Any]:
        attached = set(self._parameters)
        self._parameters.extend(parameter for parameter in model.parameters() if parameter not in attached)
        forward = self._replicate(model)
        self.buffers.attach(model)
        return forward

    @override
    def begin_phase(self, plan: StepPlan, phase: int) -> None:
        self._plan, self._phase = plan, phase
        self.buffers.begin_step(num_filled(plan.sizes, self._num_shards))

    @override
    def begin_shard(self, micro: MicroBatch) -> None:
        self._micro = micro

    @override
    def backward(self, loss: Tensor, call: int, factor: float | Tensor, options: dict[str, Any]) -> None:
        with self.buffers.held():
            loss.backward(**options)  # type: ignore[no-untyped-call]
        add_weighted(self._parameters, self._sums.setdefault(call, {}), usable(factor, self._parameters))

    @override
    def end_shard(self) -> None:
        micro, self._micro = self._micro, None
        assert micro is not None
        changes = self.buffers.end_shard(micro)
        if changes is not None:
            add_changes(self._changes, changes)

    @override
    def news(self) -> News:
        new = [number for number in sorted(self._changes) if number not in self._changing]
        return News(modules=new, looks=self.buffers.looks())

    @override
    def gather(self, row: list[float]) -> list[list[float]] | None:
        return None

    @override
    def end_phase(self, divisors: Sequence[float | None], news: News) -> None:
        gradients: Gradients = {}
        for call, divisor in enumerate(divisors):
            for parameter, gradient in self._reduce(call).items():
                if divisor is not None:
                    gradient.div_(divisor)
                earlier = gradients.get(parameter)
                gradients[parameter] = gradient if earlier is None else earlier.add_(gradient)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient.to(parameter.dtype)
        self._changing.update(news.modules)
        self.buffers.apply(self._sum_changes())
        self.buffers.warn_of_lost_changes(news.looks)
        self._changes = {}
        self._plan = None

    @torch.no_grad()
    def _sum_changes(self) -> dict[int, Tensor]:
        """Returns the changes of buffers summed over all ranks. Every rank must call it."""
        sums: dict[int, Tensor] = {}
        for numbers in self.buffers.by_device(self._changing):
            changes = [self._changes[n] if n in self._changes else self.buffers.absent(n) for n in numbers]
            if self._world_size > 1:
                flat = torch.cat(changes)
                dist.all_reduce(flat)
                changes = list(torch.split(flat, [change.numel() for change in changes]))
            sums.update(zip(numbers, changes, strict=True))
        return sums

    @override
    def drop(self) -> None:
        self._sums.clear()
        self.buffers.rewind()
        self._changes = {}
        self._plan = self._micro = None

    @override
    def close(self) -> None:
        pass

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        """Copies the model from rank 0 to every rank, and returns the callable for its forward
        pass. Here the only process has it already."""
        return model

    def _reduce(self, call: int) -> Gradients:
        """Returns the weighted sums of a backward call over all shards of all ranks, not yet in the
        parameters' dtype. Here they are the sums of the only process.

        Called on every rank for every call that any rank made.
        """
        return self._sums.pop(call, {})
