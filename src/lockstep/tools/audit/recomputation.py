"""Runs a micro-step without side effects, in place of the run's ledger and strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lockstep.data.streams import preserve_rng
from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep
from lockstep.sync.buffers import ShardBuffers
from lockstep.sync.gradients import detach_grads


class Accounts(Protocol):
    """Collects the values of micro-steps."""

    @property
    def weight(self) -> float:
        """The micro-step's weight in means."""

    @property
    def num_calls(self) -> int:
        """Backward calls of the micro-step so far."""

    def begin_shard(self, micro: MicroStep) -> None:
        """Begin a micro-step."""

    def call(self, weight: float | None, reduction: str | None, micro: MicroStep) -> float:
        """Record a backward call and return the factor for its gradients."""

    def add(self, weight: float | None, values: dict[str, Any], reduction: str | None = None) -> None:
        """Record values of the current micro-step."""

    def end_shard(self) -> None:
        """End the micro-step."""


class Engine(Protocol):
    """Runs the backward passes of micro-steps."""

    def begin_shard(self, micro: MicroStep) -> None:
        """Begin a micro-step."""

    def backward(self, loss: Tensor, call: int, factor: float, options: dict[str, Any]) -> None:
        """Run a backward pass."""

    def end_shard(self) -> None:
        """End the micro-step."""


class Course(NamedTuple):
    """What a micro-step runs on."""

    accounts: Accounts
    """Where its values go."""
    engine: Engine
    """Where its gradients and buffer changes go."""
    listeners: Listener
    """Who is notified."""


class NoAccounts:
    """Discards the values. Implements Accounts."""

    def __init__(self) -> None:
        self.weight, self.num_calls = 0.0, 0

    def begin_shard(self, micro: MicroStep) -> None:
        """See Accounts."""
        self.weight, self.num_calls = float(micro.num_samples), 0

    def call(self, weight: float | None, reduction: str | None, micro: MicroStep) -> float:
        """See Accounts."""
        self.num_calls += 1
        self.weight = self.weight if weight is None else weight
        return 1.0

    def add(self, weight: float | None, values: dict[str, Any], reduction: str | None = None) -> None:
        """See Accounts."""

    def end_shard(self) -> None:
        """See Accounts."""


class UndoingEngine:
    """Discards gradients, and restores buffers and random streams when the shard ends. Implements Engine.

    Args:
        parameters: of all prepared models.
        models: all prepared models.
        buffers: restores buffers after each shard; None: the run does not do that, since its steps are those of a plain
            script, which may use ``.grad`` inside ``batch.shards``.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], models: Sequence[nn.Module], buffers: ShardBuffers | None
    ) -> None:
        self._parameters = parameters
        self._models = models
        self._buffers = buffers
        self._micro: MicroStep | None = None
        self._undo = contextlib.ExitStack()

    def begin_shard(self, micro: MicroStep) -> None:
        """See Engine."""
        self._micro = micro
        if micro.begins_shard:
            self._undo.enter_context(preserve_rng())
            self._undo.callback(_remember_buffers(self._models) if self._buffers is None else self._buffers.rewind)

    def backward(self, loss: Tensor, call: int, factor: float, options: dict[str, Any]) -> None:
        """See Engine."""
        with contextlib.nullcontext() if self._buffers is None else self._buffers.held():
            loss.backward(**options)  # type: ignore[no-untyped-call]
        if self._buffers is not None:
            detach_grads(self._parameters)

    def end_shard(self) -> None:
        """See Engine."""
        micro, self._micro = self._micro, None
        assert micro is not None
        if self._buffers is None and micro.ends_shard:
            detach_grads(self._parameters)
        if micro.ends_shard:
            self._undo.close()

    def drop(self) -> None:
        """Undo the changes of an unfinished shard."""
        if self._micro is not None:
            self._micro = None
            detach_grads(self._parameters)
        self._undo.close()


def _remember_buffers(models: Iterable[nn.Module]) -> Callable[[], None]:
    """Returns a function that restores the buffers to their present values, including those that are None."""
    before: list[tuple[dict[str, Any], str, Tensor | None, Tensor | None]] = [
        (module._buffers, name, buffer, None if buffer is None else buffer.detach().clone())
        for model in models
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]

    def put_back() -> None:
        with torch.no_grad():
            for buffers, name, buffer, value in before:
                buffers[name] = buffer
                if buffer is not None and value is not None:
                    buffer.data.copy_(value)

    return put_back
