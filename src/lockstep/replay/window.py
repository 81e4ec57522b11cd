"""A listener that is told only of the last steps of a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep


class Window(Listener):
    """Passes on what happens in a step to another listener, from the first step on that concerns it; and all the rest.

    Args:
        listener: the other one.
        first: the step.
    """

    def __init__(self, listener: Listener, first: int) -> None:
        self._listener = listener
        self._first = first
        self._told: Listener = Listener()
        """The other one, or while it is not concerned, one that does nothing."""

    def prepared(self, item: Any) -> None:
        """See Listener."""
        self._listener.prepared(item)

    def prepared_loader(self, batches: Iterable[Any]) -> None:
        """See Listener."""
        self._listener.prepared_loader(batches)

    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        """See Listener."""
        self._listener.begin_pass(epoch, num_epochs, num_steps, done)

    def begin_step(self, step: int) -> None:
        """See Listener."""
        if step >= self._first:
            self._told = self._listener
        self._told.begin_step(step)

    def begin_phase(self, phase: int) -> None:
        """See Listener."""
        self._told.begin_phase(phase)

    def begin_shard(self, micro: MicroStep) -> None:
        """See Listener."""
        self._told.begin_shard(micro)

    def received(self, micro: MicroStep, data: Any) -> None:
        """See Listener."""
        self._told.received(micro, data)

    def before_backward(self, loss: Tensor, weight: float | None) -> None:
        """See Listener."""
        self._told.before_backward(loss, weight)

    def after_backward(self) -> None:
        """See Listener."""
        self._told.after_backward()

    def end_shard(self) -> None:
        """See Listener."""
        self._told.end_shard()

    def end_phase(self, phase: int) -> None:
        """See Listener."""
        self._told.end_phase(phase)

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """See Listener."""
        self._told.before_optimizer(optimizer)

    def end_step(self, step: int, num_samples: int) -> None:
        """See Listener."""
        self._told.end_step(step, num_samples)

    def tick(self, step: int) -> None:
        """See Listener."""
        self._told.tick(step)

    def drop(self) -> None:
        """See Listener."""
        self._told.drop()

    def end_pass(self, step: int, *, exhausted: bool) -> None:
        """See Listener."""
        self._listener.end_pass(step, exhausted=exhausted)

    def flush(self) -> None:
        """See Listener."""
        self._told.flush()

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """See Listener."""
        self._told.evaluated(step, values)

    def end_run(self, step: int, *, failed: bool) -> None:
        """See Listener."""
        self._listener.end_run(step, failed=failed)
