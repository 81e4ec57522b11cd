"""The objects that the run trains: prepared models, optimizers and schedules."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep._prepare.model_precision import ModelPrecision
from lockstep._prepare.scaling import LossScaling
from lockstep._prepare.state_adapters import parameters_of
from lockstep._prepare.unprepared import is_local_grad


class TrainedObjects:
    """The parameters, precisions, optimizers and schedules that were prepared so far.

    Args:
        scaling: the scaling of the loss, if the precision requires it.
    """

    def __init__(self, scaling: LossScaling | None) -> None:
        self.models: list[nn.Module] = []
        self.model_precisions: list[ModelPrecision] = []
        """The precisions of the models whose backward passes also need them."""
        self.parameters: dict[nn.Parameter, str] = {}
        """The parameters of all prepared models, in order, with their names."""
        self.ids: set[int] = set()
        """The ids of the parameters. Looking up a tensor takes several times as long as an id, and
        every step looks up each."""
        self.scaling = scaling
        """The scaling of losses and synchronized gradients; None: losses are not scaled."""
        self.optimizers: list[Optimizer] = []
        self.schedules: list[LRScheduler] = []

    def add_model(self, model: nn.Module, precision: ModelPrecision) -> None:
        """Adds a model."""
        self.models.append(model)
        if precision.reaches_backward:
            self.model_precisions.append(precision)
        # A parameter that two models share keeps its first name.
        for name, parameter in model.named_parameters():
            self.parameters.setdefault(parameter, name)
            self.ids.add(id(parameter))

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Adds an optimizer."""
        self.optimizers.append(optimizer)
        if self.scaling is not None:
            self.scaling.attach(optimizer)

    def trains(self, optimizer: Optimizer) -> bool:
        """Returns whether an optimizer, prepared or not, has parameters of prepared models."""
        return any(id(parameter) in self.ids for parameter in parameters_of(optimizer))

    def sort_out(self, optimizer: Optimizer) -> tuple[bool, Tensor | None]:
        """Returns ``trains``, and a parameter of the optimizer that has a gradient and belongs to
        no prepared model. If the optimizer has no parameters of prepared models, its gradients are
        the script's business, except for those from inside ``batch.shards``."""
        trains = False
        unprepared: list[Tensor] = []
        for group in optimizer.param_groups:
            parameters = group["params"]
            if self.ids.issuperset(map(id, parameters)):  # nearly always, and quick
                trains = trains or bool(parameters)
                continue
            for parameter in parameters:
                if id(parameter) in self.ids:
                    trains = True
                elif parameter.grad is not None:
                    unprepared.append(parameter)
        if not unprepared:
            return trains, None
        return trains, next((p for p in unprepared if trains or is_local_grad(p.grad)), None)
