"""Updating optimizers whose parameters were replaced when their model was prepared (by ``fsdp``)."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn import Parameter
from torch.optim import Optimizer

from lockstep.base.errors import UsageError
from lockstep.prepare.state_adapters import parameters_of


def remap(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Replace parameters in an optimizer's groups. Its options stay.

    Raises:
        UsageError: the optimizer has taken steps, so it has state for unsharded parameters.
    """
    affected = replaced.keys() & parameters_of(optimizer)
    used = sum(bool(optimizer.state.get(parameter)) for parameter in affected)
    if used:
        raise UsageError(
            f"{type(optimizer).__name__} has taken steps before prepare(): it has state for {used} of its {len(affected)} "
            "parameters, which strategy='fsdp' shards over the processes. Create a new optimizer, or resume from a checkpoint "
            "of the run (with any strategy), which has that state."
        )
    for group in optimizer.param_groups:
        group["params"][:] = [replaced.get(parameter, parameter) for parameter in group["params"]]
