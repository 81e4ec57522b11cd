"""Optimizers whose parameters were replaced when their model was prepared (``fsdp`` does that)."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn import Parameter
from torch.optim import Optimizer

from lockstep.errors import UsageError


def remap(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Put the parameters that have taken the place of others into an optimizer's groups. Its options stay.

    Raises:
        UsageError: it has state for one of them, from steps that it has taken: that state is of whole parameters.
    """
    known = {parameter for group in optimizer.param_groups for parameter in group["params"]} & replaced.keys()
    used = sum(bool(optimizer.state.get(parameter)) for parameter in known)
    if used:
        raise UsageError(
            f"{type(optimizer).__name__} has taken steps before prepare(): it has state for {used} of its {len(known)} "
            "parameters, and strategy='fsdp' deals parameters out to the processes. Make the optimizer anew, or resume from a "
            "checkpoint of the run (any strategy's), which has that state."
        )
    for group in optimizer.param_groups:
        group["params"][:] = [replaced.get(parameter, parameter) for parameter in group["params"]]
