"""Parameters that are replaced when their model is prepared: by ``fsdp``, and on some devices when
it is moved there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lockstep._base.errors import UsageError
from lockstep._base.trees import is_circular, mapped
from lockstep._prepare.state_adapters import inner_optimizers, parameters_of
from lockstep._sync.gradients import is_narrow
from lockstep._world.comm.dtensors import is_dtensor


def remap(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter], outer: tuple[Optimizer, ...] = ()) -> None:
    """Replace parameters in the groups of an optimizer, and of optimizers in it. Its options stay.

    Args:
        outer: the optimizers that it is in.

    Raises:
        UsageError: the optimizer has taken steps, so it has state for the parameters that were
            replaced; or it would not compute the same on parts of them.
    """
    affected = replaced.keys() & parameters_of(optimizer)
    used = sum(bool(optimizer.state.get(parameter)) for parameter in affected)
    if used:
        raise UsageError(
            f"{type(optimizer).__name__} has taken steps before prepare(): it has state for {used} of its {len(affected)} "
            "parameters, which prepare() has replaced by others (strategy='fsdp' shards them over the processes). Create a new "
            "optimizer, or resume from a checkpoint of the run (with any strategy), which has that state."
        )
    _check_elementwise(optimizer, replaced)
    for group in optimizer.param_groups:
        group["params"][:] = [replaced.get(parameter, parameter) for parameter in group["params"]]
    if affected:
        _remap_attributes(optimizer, replaced)
    for inner in inner_optimizers(optimizer, outer).values():
        remap(inner, replaced, (*outer, optimizer))


def _remap_attributes(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Replace parameters that an optimizer keeps a second time: in a list, or as the keys of a
    dict."""

    found: list[Parameter] = []

    def current(leaf: Any) -> Any:
        if not isinstance(leaf, Parameter) or leaf not in replaced:
            return leaf
        found.append(leaf)
        return replaced[leaf]

    for name, value in vars(optimizer).items():
        if name in ("param_groups", "state") or is_circular(value):
            continue
        found.clear()
        made = mapped(value, current)
        if found:
            vars(optimizer)[name] = made


_OF_WHOLE_TENSORS = (optim.LBFGS, optim.Adafactor, optim.Muon)


def _check_elementwise(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Check that an optimizer computes each element by itself, with the same bits wherever it is in
    a tensor."""
    if not any(is_dtensor(replaced.get(parameter, parameter)) for parameter in parameters_of(optimizer)):
        return
    kind = type(optimizer).__name__
    if isinstance(optimizer, _OF_WHOLE_TENSORS):
        raise UsageError(
            f"{kind} with strategy='fsdp': it computes with whole tensors (norms, products), of which every process has a part "
            "only, so the answer would depend on the number of processes. Use an optimizer that computes each element by "
            "itself (AdamW, SGD, ...), or another strategy."
        )
    for group in optimizer.param_groups:
        on_cpu = [parameter for parameter in group["params"] if parameter.is_cpu]
        if not isinstance(optimizer, optim.AdamW) and any(map(is_narrow, on_cpu)):
            raise UsageError(
                f"{kind} of 16-bit parameters with strategy='fsdp' on the CPU: PyTorch rounds add(g, alpha=...) differently in "
                "short tensors, and how long a process's parts are depends on the number of processes. Use AdamW, or "
                "16-mixed or bf16-mixed, which have float32 weights."
            )
        if group.get("fused") and on_cpu:
            raise UsageError(
                f"{kind}(fused=True) with strategy='fsdp' on the CPU: its kernel computes the last elements of a tensor with "
                "other instructions, and where a process's part ends depends on the number of processes. Leave out fused=True."
            )
