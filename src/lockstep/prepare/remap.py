"""Parameters that are replaced when their model is prepared: by ``fsdp``, and on some devices when it is moved there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from lockstep.base.errors import UsageError
from lockstep.prepare.state_adapters import parameters_of


def move(model: nn.Module, device: torch.device) -> dict[Parameter, Parameter]:
    """Move a model to a device, and return the parameters that were replaced, with their replacements.

    ``Module.to`` moves parameters in place where their kind of tensor allows it, as on CUDA. Elsewhere (devices on PyTorch's
    PrivateUse1) it makes new ones, which no optimizer knows, a new one for each name of a shared parameter: shared again here.
    """
    before = dict(model.named_parameters(remove_duplicate=False))
    model.to(device)
    replaced: dict[Parameter, Parameter] = {}
    for name, old in before.items():
        new = model.get_parameter(name)
        if new is not old and replaced.setdefault(old, new) is not new:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, replaced[old])
    return replaced


def remap(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Replace parameters in an optimizer's groups. Its options stay.

    Raises:
        UsageError: the optimizer has taken steps, so it has state for the parameters that were replaced.
    """
    affected = replaced.keys() & parameters_of(optimizer)
    used = sum(bool(optimizer.state.get(parameter)) for parameter in affected)
    if used:
        raise UsageError(
            f"{type(optimizer).__name__} has taken steps before prepare(): it has state for {used} of its {len(affected)} "
            "parameters, which prepare() has replaced by others (strategy='fsdp' shards them over the processes). Create a new "
            "optimizer, or resume from a checkpoint of the run (with any strategy), which has that state."
        )
    for group in optimizer.param_groups:
        group["params"][:] = [replaced.get(parameter, parameter) for parameter in group["params"]]
