"""Methods of prepared objects that are replaced on the object: by methods that refuse, do nothing
for a while, or cast.

They are replaced on the object, not by a wrapper, since the script and libraries keep references to
it and test its class. Each replacement is a bound method like the original, so that
``copy.deepcopy`` of the object binds it to the copy.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, amp, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep._world.comm.dtensors import to_local


def refuse_inside(target: Any, names: tuple[str, ...], guard: Callable[[str], None]) -> None:
    """Replaces methods of an object by methods that raise an error inside ``batch.shards``, and act
    as before outside."""
    kind = "GradScaler" if isinstance(target, amp.GradScaler) else type(target).__name__
    for name in names:
        _guard_method(target, name, guard, f"{kind}.{name}()")


def _guard_method(target: Any, name: str, guard: Callable[[str], None], call: str) -> None:
    act = _function_of(target, name)

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        guard(call)
        return act(self, *args, **kwargs)

    _replace(target, name, guarded)


def idle_when(target: Any, name: str, is_idle: Callable[[], bool]) -> None:
    """Replaces a method by one that does nothing while ``is_idle`` returns True: while a resumed
    script repeats code from before the interruption, in a dry run of a shard, and after the end of
    a finished run."""
    # For example ``schedule.step()``: the checkpoint has the schedule's state after the calls of
    # the earlier launch, and repeating them would advance it twice.
    act = _function_of(target, name)

    def idle(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if is_idle() else act(self, *args, **kwargs)

    _replace(target, name, idle)
    if isinstance(target, LRScheduler):
        state_of = _function_of(target, "state_dict")

        def state_dict(self: Any) -> dict[str, Any]:
            # PyTorch's own returns all attributes of the object, including the methods replaced
            # here.
            return {key: value for key, value in state_of(self).items() if key not in (name, "state_dict")}

        _replace(target, "state_dict", state_dict)


def _function_of(target: Any, name: str) -> Callable[..., Any]:
    """Returns a method of an object as a function, whose first argument is the object or a copy."""
    act = getattr(target, name)
    if isinstance(act, types.MethodType) and act.__self__ is target:
        return act.__func__
    return lambda _, *args, **kwargs: act(*args, **kwargs)


def _replace(target: Any, name: str, method: Callable[..., Any]) -> None:
    """Replaces a method of an object by one whose first argument is the object or a copy."""
    act = getattr(target, name)
    # PyTorch's schedules record their calls in attributes of the method.
    method.__dict__.update(getattr(act, "__dict__", {}))
    method.__doc__ = act.__doc__
    method.__name__ = name  # an unpickled copy looks up the method of its class by this name
    setattr(target, name, types.MethodType(method, target))


def keep_dtypes(average: AveragedModel) -> None:
    """Makes an AveragedModel accept a model of other dtypes: an average of 16-bit weights is better
    kept in float32."""
    # A change of 0.1 % (decay 0.999) is below the 8 bits of a bfloat16, so the average would stop.
    act = _function_of(average, "update_parameters")

    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        act(self, _cast_like(self.module, model))

    _replace(average, "update_parameters", update_parameters)


def _cast_like(average: nn.Module, model: nn.Module) -> nn.Module:
    """Returns the model, or a module with its parameters and buffers in the dtypes of
    ``average``."""
    averages, values = ([*module.parameters(), *module.buffers()] for module in (average, model))
    if all(a.dtype == value.dtype for a, value in zip(averages, values, strict=False)):
        return model
    dtypes = [a.dtype for a in averages]
    return _module_of(model, lambda number, value: value.to(dtypes[number]))


def average_parts(average: AveragedModel) -> None:
    """Makes an AveragedModel average this rank's rows of a model that is cut over the ranks, as
    plain tensors: an average computes each number alone."""
    act = _function_of(average, "update_parameters")

    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        whole = self.module
        self.module = _module_of(whole, _local)
        try:
            act(self, _module_of(model, _local))
        finally:
            self.module = whole

    _replace(average, "update_parameters", update_parameters)


def _local(_: int, tensor: Tensor) -> Tensor:
    return to_local(tensor)


def _module_of(model: nn.Module, convert: Callable[[int, Tensor], Tensor]) -> nn.Module:
    """Returns a module with a model's parameters and buffers, each converted by a function of its
    number and value."""
    converted = nn.Module()
    for number, tensor in enumerate([*model.parameters(), *model.buffers()]):
        value = convert(number, tensor.detach())
        if isinstance(tensor, nn.Parameter):
            converted.register_parameter(str(number), nn.Parameter(value, requires_grad=False))
        else:
            converted.register_buffer(str(number), value)
    return converted
