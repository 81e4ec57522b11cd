"""The prepared objects that steps act on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, amp, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep.prepare.model_precision import ModelPrecision
from lockstep.prepare.scaling import LossScaling
from lockstep.prepare.shard_gradients import ShardGradients
from lockstep.prepare.shard_weights import ShardWeights
from lockstep.prepare.state_adapters import parameters_of
from lockstep.prepare.strangers import Strangers, is_of_one_process


class Watched:
    """The parameters, precisions, optimizers and schedules that were prepared so far.

    Args:
        num_shards: V. With a single shard, changes inside ``batch.shards`` are allowed.
        scaling: scales the loss, if the precision requires it.
        is_plain: whether a step is that of a plain single-device script, with the same ``.grad``.
    """

    def __init__(self, num_shards: int, scaling: LossScaling | None, *, is_plain: bool) -> None:
        self.models: list[nn.Module] = []
        self.model_precisions: list[ModelPrecision] = []
        """Those of prepared models whose backward passes need them too."""
        self.parameters: dict[nn.Parameter, str] = {}
        """The parameters of all prepared models, in order, with their names."""
        self.ids: set[int] = set()
        """The parameters' ids: looking up tensors takes several times as long, and is done for each of them in every step."""
        self.scaling = scaling
        """Scales the losses of steps, and unscales their synchronized gradients; None: they are not scaled."""
        self._optimizers: list[Optimizer] = []
        self._schedules: list[LRScheduler] = []
        self.is_strict = num_shards > 1
        """Whether changes inside ``batch.shards`` are refused."""
        self.gradients = ShardGradients(self.parameters, is_plain=is_plain)
        self.strangers = Strangers(self.ids)
        self.weights = ShardWeights(self.parameters, self._optimizers, self._schedules)

    def add_model(self, model: nn.Module, precision: ModelPrecision) -> None:
        """Add a model."""
        self.models.append(model)
        if precision.reaches_backward:
            self.model_precisions.append(precision)
        self.gradients.add_model(model)
        self.weights.add_model(model)
        for name, parameter in model.named_parameters():
            self.parameters.setdefault(parameter, name)
            self.ids.add(id(parameter))

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Add an optimizer."""
        self._optimizers.append(optimizer)
        if self.scaling is not None:
            self.scaling.attach(optimizer)

    def add_schedule(self, schedule: LRScheduler) -> None:
        """Add a schedule."""
        self._schedules.append(schedule)

    def trains(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer, prepared or not, has parameters of prepared models."""
        return any(id(parameter) in self.ids for parameter in parameters_of(optimizer))

    def sort_out(self, optimizer: Optimizer) -> tuple[bool, Tensor | None]:
        """``trains``, and any parameter of the optimizer that belongs to no prepared model and has a gradient: if the optimizer
        has no parameters of such models, one from inside ``batch.shards``."""
        trains = False
        strangers: list[Tensor] = []
        for group in optimizer.param_groups:
            parameters = group["params"]
            if self.ids.issuperset(map(id, parameters)):  # nearly always, and quick
                trains = trains or bool(parameters)
                continue
            for parameter in parameters:
                if id(parameter) in self.ids:
                    trains = True
                elif parameter.grad is not None:
                    strangers.append(parameter)
        return trains, next((p for p in strangers if trains or is_of_one_process(p.grad)), None)


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
    cast = nn.Module()
    for number, (a, value) in enumerate(zip(averages, values, strict=True)):
        tensor = value.detach().to(a.dtype)
        if isinstance(a, nn.Parameter):
            cast.register_parameter(str(number), nn.Parameter(tensor, requires_grad=False))
        else:
            cast.register_buffer(str(number), tensor)
    return cast
