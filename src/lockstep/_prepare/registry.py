"""The adapters for all kinds of objects in the run's state, prepared or registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, amp, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lockstep._base.errors import MismatchError, UsageError
from lockstep._data.states import has_state, is_generator, put_state, take_state
from lockstep._prepare.per_shard import PerShard
from lockstep._prepare.scaling import LossScaling
from lockstep._prepare.state_adapters import (
    AverageAdapter,
    ModelAdapter,
    OptimizerAdapter,
    ScalerAdapter,
    ScheduleAdapter,
    StateAdapter,
)


class StatefulAdapter(StateAdapter):
    """The adapter of an object with ``state_dict`` and ``load_state_dict``, or a random
    generator."""

    @override
    def state_dict(self) -> Any:
        """Returns a copy of the state."""
        return take_state(self.target)

    @override
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        put_state(self.target, state)


class ShardsAdapter(StatefulAdapter):
    """The adapter of values per shard. They differ between ranks, so none are compared."""

    @override
    def compared(self) -> Iterator[tuple[str, Any]]:
        return iter(())


class PlainAdapter(StateAdapter):
    """The adapter of a tensor, a list or a dict, which is restored in place."""

    @override
    def state_dict(self) -> Any:
        return self.target.detach() if isinstance(self.target, Tensor) else self.target

    @torch.no_grad()
    @override
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """Raises:
        MismatchError: the saved object has another kind, or is a tensor of another shape.
        """
        target = self.target
        now, was = _kind(target), _kind(state)
        if now != was:
            raise MismatchError(
                f"register({self.name!r}, ...): cannot restore {was} from the checkpoint into {now}. Change it back, or "
                "start a new run with --fresh (fresh=True).",
                code="registered-kind-changed",
            )
        if isinstance(target, Tensor):
            target.copy_(state)
        elif isinstance(target, list):
            target[:] = state
        else:
            target.clear()
            target.update(state)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return next((f"a {kind.__name__}" for kind in (list, dict) if isinstance(value, kind)), f"a {type(value).__name__}")


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda target: isinstance(target, kinds)


ADAPTERS: tuple[tuple[Callable[[Any], bool], type[StateAdapter]], ...] = (
    # Objects of team.prepare:
    (_is(AveragedModel), AverageAdapter),
    (_is(nn.Module), ModelAdapter),
    (_is(Optimizer), OptimizerAdapter),
    (_is(LRScheduler), ScheduleAdapter),
    (_is(amp.GradScaler, LossScaling), ScalerAdapter),
    # Objects of team.register, which also saves whole models under the registered name:
    (_is(PerShard), ShardsAdapter),
    # An optimizer that was not prepared, with its attributes.
    (_is(Optimizer), OptimizerAdapter),
    (lambda target: has_state(target) or is_generator(target), StatefulAdapter),
    (_is(Tensor, list, dict), PlainAdapter),
)
"""The adapter of each kind of object in the run's state: the first row whose function accepts the
object. So subclasses come before their bases: AveragedModel before Module."""
_FIRST_REGISTERED = [adapter for _, adapter in ADAPTERS].index(ShardsAdapter)


def adapter_of(target: Any) -> StateAdapter:
    """Returns the adapter for a prepared object."""
    return next(adapter for accepts, adapter in ADAPTERS if accepts(target))(target)


def registered_adapter(name: str, target: Any) -> StateAdapter:
    """Returns the adapter for a registered object.

    Raises:
        UsageError: its state cannot be saved and restored.
    """
    for accepts, make in ADAPTERS[_FIRST_REGISTERED:]:
        if accepts(target):
            adapter = make(target)
            adapter.name = name
            return adapter
    raise UsageError(
        f"register({name!r}, ...): a {type(target).__name__} has no state that can be restored. Register a tensor, a list or a "
        "dict (restored in place), a random generator, or an object with state_dict() and load_state_dict().",
        code="cannot-register",
    )
