"""Methods of prepared objects that are replaced on the object: by ones that refuse, do nothing for a while, or cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, amp, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep.world.comm.dtensors import to_local


def refuse_inside(target: Any, names: tuple[str, ...], guard: Callable[[str], None]) -> None:
    """Replace methods of an object by ones that raise an error inside ``batch.shards``, and otherwise act as before."""
    kind = "GradScaler" if isinstance(target, amp.GradScaler) else type(target).__name__
    for name in names:
        _guard_method(target, name, guard, f"{kind}.{name}()")


def _guard_method(target: Any, name: str, guard: Callable[[str], None], call: str) -> None:
    act = getattr(target, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard(call)
        return act(*args, **kwargs)

    guarded.__doc__ = act.__doc__
    setattr(target, name, guarded)


def idle_when(target: Any, name: str, is_idle: Callable[[], bool]) -> None:
    """Replace a method by one that does nothing while the script repeats what it did: before an interruption, since the
    state is restored from the checkpoint, or a shard aside. Nor does it act after the end of a finished run."""
    act = getattr(target, name)

    def idle(*args: Any, **kwargs: Any) -> Any:
        return None if is_idle() else act(*args, **kwargs)

    idle.__dict__.update(getattr(act, "__dict__", {}))  # PyTorch's schedules record their calls there
    idle.__doc__ = act.__doc__
    setattr(target, name, idle)
    if isinstance(target, LRScheduler):
        state_of = target.state_dict

        def state_dict() -> dict[str, Any]:
            # PyTorch's own returns all attributes of the object, including the methods replaced here.
            return {key: value for key, value in state_of().items() if key not in (name, "state_dict")}

        target.state_dict = state_dict  # type: ignore[method-assign]


def keep_dtypes(average: AveragedModel) -> None:
    """Let an AveragedModel average a model of other dtypes: an average of 16-bit weights is better kept in float32."""
    act = average.update_parameters

    def update_parameters(model: nn.Module) -> None:
        act(_cast_like(average.module, model))

    average.update_parameters = update_parameters  # type: ignore[method-assign]


def _cast_like(average: nn.Module, model: nn.Module) -> nn.Module:
    """The model, or a module with its parameters and buffers in the dtypes of ``average``."""
    averages, values = ([*module.parameters(), *module.buffers()] for module in (average, model))
    if all(a.dtype == value.dtype for a, value in zip(averages, values, strict=False)):
        return model
    dtypes = [a.dtype for a in averages]
    return _module_of(model, lambda number, value: value.to(dtypes[number]))


def average_parts(average: AveragedModel) -> None:
    """Let an AveragedModel average this rank's parts of a sharded model, plain tensors: an average takes each number alone."""
    act = average.update_parameters

    def update_parameters(model: nn.Module) -> None:
        whole = average.module
        average.module = _module_of(whole, _local)
        try:
            act(_module_of(model, _local))
        finally:
            average.module = whole

    average.update_parameters = update_parameters  # type: ignore[method-assign]


def _local(_: int, tensor: Tensor) -> Tensor:
    return to_local(tensor)


def _module_of(model: nn.Module, convert: Callable[[int, Tensor], Tensor]) -> nn.Module:
    """A module with a model's parameters and buffers, each converted, given its number."""
    converted = nn.Module()
    for number, tensor in enumerate([*model.parameters(), *model.buffers()]):
        value = convert(number, tensor.detach())
        if isinstance(tensor, nn.Parameter):
            converted.register_parameter(str(number), nn.Parameter(value, requires_grad=False))
        else:
            converted.register_buffer(str(number), value)
    return converted
