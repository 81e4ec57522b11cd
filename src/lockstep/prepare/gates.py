"""Optimizers, schedules, averages and loss scalers that act once a step, wherever in the loop's body they are called.

The user's objects stay what they are: only the one method that changes something is replaced, on that object. So
schedules made before or after ``prepare`` work, ``isinstance`` holds, and a state dict is a state dict.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import amp, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from lockstep.errors import UsageError
from lockstep.prepare.scaling import LossScaling

MayAct = Callable[[], bool]
"""Whether a step is ending, or no loop is running."""

_NO_CLOSURES = (
    "calls its closure several times a step, and each call would be a step of its own for the other ranks and shards: "
    "use an optimizer that needs no closure (SGD, Adam, ...)"
)


def gate_optimizer(optimizer: Optimizer, may_act: Callable[[Optimizer], bool], scaling: LossScaling | None = None) -> None:
    """Make ``optimizer.step()`` act when a step ends, and do nothing before.

    Args:
        optimizer: the optimizer.
        may_act: see above; told which optimizer asks.
        scaling: of the loss, if the run's precision needs it: its gradients are unscaled first, and an overflow skips.

    Raises:
        UsageError: the optimizer needs closures.
    """
    if isinstance(optimizer, LBFGS):
        raise UsageError(f"{type(optimizer).__name__} {_NO_CLOSURES}")
    act = optimizer.step

    def step(self: Optimizer, closure: Any = None) -> None:
        if closure is not None:
            raise UsageError(f"{type(self).__name__}.step(closure) {_NO_CLOSURES}")
        if not may_act(self):
            return
        if scaling is None:
            act()
        else:
            scaling.step(self, act)

    if scaling is not None:
        scaling.attach(optimizer)
    _replace(optimizer, "step", step)


def gate_scaler(scaler: amp.GradScaler, may_act: MayAct) -> None:
    """Make the script's own loss scaler unscale, step and update when a step ends, and do nothing before.

    (Its ``scale(loss)`` acts always, by the same factor for all shards of a step.)
    """
    for name in ("unscale_", "step", "update"):
        _replace(scaler, name, _gated(getattr(scaler, name), may_act))


def _gated(act: Callable[..., Any], may_act: MayAct) -> Callable[..., Any]:
    def gated(_: Any, *args: Any, **kwargs: Any) -> Any:
        return act(*args, **kwargs) if may_act() else None

    return gated


def gate_scheduler(scheduler: LRScheduler, may_act: MayAct, sees_one_shard: Callable[[], bool]) -> None:
    """Make ``scheduler.step()`` count steps where it is called in the loop, and every call outside of it.

    Args:
        scheduler: the schedule.
        may_act: see above.
        sees_one_shard: whether code that runs now has values of one shard of several.
    """
    act, state_of = scheduler.step, scheduler.state_dict

    def step(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, ReduceLROnPlateau) and sees_one_shard():
            raise UsageError(
                "ReduceLROnPlateau.step(value) in the loop's body: the value is that of one shard, so the ranks would choose "
                "different learning rates. Call it after the loop, with the result of team.evaluate()."
            )
        if may_act():
            act(*args, **kwargs)

    def state_dict(self: LRScheduler) -> dict[str, Any]:
        # PyTorch's own takes all attributes of the object: what was put there is not part of its state.
        return {name: value for name, value in state_of().items() if name not in ("step", "state_dict")}

    _replace(scheduler, "step", step)
    _replace(scheduler, "state_dict", state_dict)


def gate_average(average: AveragedModel, may_act: MayAct) -> None:
    """Make ``average.update_parameters(model)`` act when a step ends, and do nothing before."""
    act = average.update_parameters

    def update_parameters(self: AveragedModel, model: Any) -> None:
        if may_act():
            act(_in_formats_of(self.module, model))

    _replace(average, "update_parameters", update_parameters)


def _in_formats_of(average: nn.Module, model: nn.Module) -> nn.Module:
    """The model, or something with its parameters and buffers in the average's formats: that of 16-bit weights is better
    kept in float32."""
    kept, seen = ([*module.parameters(), *module.buffers()] for module in (average, model))
    if all(one.dtype == other.dtype for one, other in zip(kept, seen, strict=False)):
        return model
    same = nn.Module()
    for number, (one, other) in enumerate(zip(kept, seen, strict=True)):
        cast = other.detach().to(one.dtype)
        if isinstance(one, nn.Parameter):
            same.register_parameter(str(number), nn.Parameter(cast, requires_grad=False))
        else:
            same.register_buffer(str(number), cast)
    return same


def _replace(thing: Any, name: str, function: Callable[..., Any]) -> None:
    # A bound method, as the original is: schedulers look at its __func__. What they have noted on the original is kept.
    original = getattr(thing, name)
    function.__dict__.update(getattr(original, "__dict__", {}))
    function.__doc__ = original.__doc__
    setattr(thing, name, types.MethodType(function, thing))
