"""Parameters that are replaced when their model is prepared: by ``fsdp``, and on some devices by
the move.

The optimizer was made before, from the old parameters. Without the replacement it would step on
tensors that no longer belong to the model, and nothing would be trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lockstep._base.errors import UsageError
from lockstep._base.trees import is_circular, mapped
from lockstep._prepare.state_adapters import inner_optimizers, parameters_of
from lockstep._sync.gradients import is_narrow
from lockstep._world.comm.dtensors import is_dtensor


def remap(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Replaces parameters in the groups of an optimizer, and of optimizers in it. Its options are
    unchanged.

    Raises:
        UsageError: one of them has taken steps, so it has state for replaced parameters, or its
            results would differ on parts of them. Then nothing was replaced.
    """
    # All are looked at before any is changed: an inner optimizer may have the groups of the outer.
    everyone = list(_with_inner(optimizer))
    affected = [each for each in everyone if replaced.keys() & parameters_of(each)]
    for each in everyone:
        _check_unused(each, replaced)
        _check_elementwise(each, replaced)
    for each in everyone:
        for group in each.param_groups:
            group["params"][:] = [replaced.get(parameter, parameter) for parameter in group["params"]]
    for each in affected:
        _remap_attributes(each, replaced)


def _with_inner(optimizer: Optimizer, outer: tuple[Optimizer, ...] = ()) -> Iterator[Optimizer]:
    """Yields an optimizer and all in it, whose attributes may refer to those around them."""
    yield optimizer
    for inner in inner_optimizers(optimizer, outer).values():
        yield from _with_inner(inner, (*outer, optimizer))


def _check_unused(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    affected = replaced.keys() & parameters_of(optimizer)
    used = sum(bool(optimizer.state.get(parameter)) for parameter in affected)
    if used:
        raise UsageError(
            f"{type(optimizer).__name__} took steps before prepare(): it has state for {used} of {len(affected)} parameters "
            "that prepare() replaces (strategy='fsdp'). Create a new optimizer, or resume from a checkpoint of the run, "
            "which contains that state.",
            code="optimizer-stepped-before-prepare",
        )


def _remap_attributes(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Replaces parameters that an optimizer stores a second time: in a list, or as the keys of a
    dict."""

    found: list[Parameter] = []

    def current(leaf: Any) -> Any:
        if not isinstance(leaf, Parameter) or leaf not in replaced:
            return leaf
        found.append(leaf)
        return replaced[leaf]

    # A tree without replaced parameters is not assigned, since ``mapped`` has copied its
    # containers, and the script may have references to the originals.
    for name, value in vars(optimizer).items():
        if name in ("param_groups", "state") or is_circular(value):
            continue
        found.clear()
        made = mapped(value, current)
        if found:
            vars(optimizer)[name] = made


_OF_WHOLE_TENSORS = (optim.LBFGS, optim.Adafactor, optim.Muon)


def _check_elementwise(optimizer: Optimizer, replaced: Mapping[Parameter, Parameter]) -> None:
    """Checks that an optimizer computes each element alone, with a result that does not depend on
    the element's position in a tensor."""
    # With fsdp a rank has some rows of a parameter, and how many depends on W. So the same element
    # is at another position, and in a tensor of another length, on another number of processes.
    if not any(is_dtensor(replaced.get(parameter, parameter)) for parameter in parameters_of(optimizer)):
        return
    kind = type(optimizer).__name__
    if isinstance(optimizer, _OF_WHOLE_TENSORS):
        raise UsageError(
            f"{kind} with strategy='fsdp': it computes with whole tensors (norms, products), but each process has only a "
            "part, so results would depend on the number of processes. Use an elementwise optimizer (AdamW, SGD) or another "
            "strategy.",
            code="optimizer-not-elementwise",
        )
    for group in optimizer.param_groups:
        on_cpu = [parameter for parameter in group["params"] if parameter.is_cpu]
        if not isinstance(optimizer, optim.AdamW) and any(map(is_narrow, on_cpu)):
            raise UsageError(
                f"{kind} of 16-bit parameters with strategy='fsdp' on the CPU: PyTorch rounds add(g, alpha=...) differently in "
                "short tensors, and their length depends on the number of processes. Use AdamW, or float32 weights (16-mixed, "
                "bf16-mixed).",
                code="optimizer-rounds-by-length",
            )
        if group.get("fused") and on_cpu:
            raise UsageError(
                f"{kind}(fused=True) with strategy='fsdp' on the CPU: its kernel computes the last elements of a tensor with "
                "other instructions, and the end of a part depends on the number of processes. Remove fused=True.",
                code="optimizer-fused-on-cpu",
            )
