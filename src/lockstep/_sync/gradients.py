"""Weighted sums of the gradients of a process's shards, and hooks for their arrival in a backward
pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from lockstep._base.errors import ModelError, UsageError
from lockstep._world.devices import has_streams

Gradients = dict[Parameter, Tensor]
ABSENT = -0.0
"""The gradient of a shard that has none: x + (-0.0) has the bits of x for every x,
including -0.0 (IEEE 754), so adding it is the same as leaving it out. (+0.0 would turn -0.0 into
+0.0.)"""


def detach_grads(parameters: Iterable[Parameter]) -> Gradients:
    """Removes and returns the gradients of parameters, so that the next backward pass begins with
    none.

    Autograd then creates each gradient from the start, in the same way on every process;
    accumulating would round differently."""
    detached: Gradients = {}
    for parameter in parameters:
        if parameter.grad is not None:
            detached[parameter] = parameter.grad
            parameter.grad = None
    return detached


def separate(gradients: Gradients) -> None:
    """Copies gradients that begin at the same address, so that each can be changed in place.

    Autograd may give several parameters one tensor, of which each sees a view (``rows[:, None] +
    columns``)."""
    addresses: set[int] = set()
    for parameter, gradient in gradients.items():
        if (address := gradient.data_ptr()) in addresses:
            gradients[parameter] = gradient.clone()
        addresses.add(address)


def put_back(detached: Gradients) -> None:
    """Adds detached gradients to those computed since."""
    # Earlier + new, in this order on every rank, and into the earlier tensor, as PyTorch does.
    for parameter, gradient in detached.items():
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
        parameter.grad = gradient


def is_narrow(tensor: Tensor) -> bool:
    """Whether a tensor has a 16-bit floating-point dtype."""
    return tensor.dtype in (torch.float16, torch.bfloat16)


def widen(tensor: Tensor) -> Tensor:
    """Returns a 16-bit tensor as float32, in which gradients are weighted and summed, and any other
    tensor unchanged."""
    return tensor.float() if is_narrow(tensor) else tensor


def usable(factor: float | Tensor, parameters: Iterable[Tensor]) -> float | Tensor:
    """Returns the factor for the gradients of these parameters, read from its device if any of them
    is on the CPU."""
    is_read = isinstance(factor, Tensor) and any(parameter.is_cpu for parameter in parameters)
    return float(factor) if is_read else factor


def is_left_out(factor: float | Tensor) -> bool:
    """Whether a shard is known to have weight 0. Its gradient is left out: it may be NaN, from a
    mean over nothing."""
    return not isinstance(factor, Tensor) and factor == 0


def weigh(gradient: Tensor, factor: float | Tensor) -> Tensor:
    """Multiplies a gradient by a factor that is not 0, in place unless it has 16 bits. If the
    factor is a scalar tensor on a device, which is not waited for, it may be 0: the gradient then
    becomes ABSENT, even if it was NaN."""
    wide = widen(gradient)
    if isinstance(factor, Tensor):
        here = factor.to(wide.device, wide.dtype)
        wide.mul_(here).masked_fill_(here == 0, ABSENT)
    elif factor != 1.0:
        wide.mul_(factor)
    return wide


def add_weighted(parameters: Iterable[Parameter], sums: Gradients, weight: float | Tensor) -> None:
    """Moves the gradients of parameters into ``sums``, multiplied by ``weight``. Gradients of
    weight 0 are dropped, or become ABSENT as in ``weigh``.

    Raises:
        ModelError: a gradient is sparse.
    """
    is_dropped = is_left_out(weight)
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        parameter.grad = None
        if gradient.is_sparse:
            raise _sparse(gradient)
        if not is_dropped:
            # A copy, because several parameters may have one tensor: see ``separate``.
            weighted = weigh(gradient if is_narrow(gradient) else gradient.clone(), weight)
            # Its memory is of the stream that the forward pass ran in, which may not wait for this.
            if has_streams(gradient.device):
                gradient.record_stream(torch.accelerator.current_stream(gradient.device))
            earlier = sums.get(parameter)  # looked up once: hashing a tensor is a call in Python
            sums[parameter] = weighted if earlier is None else earlier.add_(weighted)


def has_gradient(parameter: Tensor) -> bool:
    """Whether a parameter is of a dtype that has gradients."""
    return parameter.is_floating_point() or parameter.is_complex()


def on_gradient(parameter: Parameter, notify: Callable[[Parameter], None]) -> RemovableHandle:
    """Makes autograd call ``notify`` whenever it has put a gradient into ``.grad``, also of a
    parameter that is unfrozen later."""
    learns = parameter.requires_grad
    parameter.requires_grad_(True)  # a frozen parameter accepts no hook, but keeps one
    hook: RemovableHandle = parameter.register_post_accumulate_grad_hook(notify)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(learns)
    return hook


def unusable(gradient: Tensor | None, name: str) -> ModelError:
    """Returns the error for what a backward pass has left in ``.grad`` of the parameter of this
    name, which is missing or sparse."""
    if gradient is not None:
        return _sparse(gradient)
    return ModelError(
        f"a hook of the script removed the gradient of {name!r} in the backward pass, before it was combined with the "
        "gradients of the other shards. Use the combined gradient, after the loop over batch.shards.",
        code="gradient-removed",
    )


def _sparse(gradient: Tensor) -> ModelError:
    return ModelError(
        f"a parameter of shape {tuple(gradient.shape)} has a sparse gradient, but gradients of shards are summed element by "
        "element. Use a dense one: Embedding(sparse=False). For SparseAdam convert it after the loop over batch.shards: "
        "weight.grad = weight.grad.to_sparse(1).",
        code="sparse-gradient",
    )


def refuse_create_graph(options: dict[str, Any], strategy: str) -> None:
    """Raises:
    UsageError: the options of a backward pass ask for a graph of gradients.
    """
    if options.get("create_graph"):
        raise UsageError(
            f"backward(create_graph=True) with strategy {strategy!r}: synchronized gradients have no graph and cannot be "
            "differentiated. For a penalty on gradients use torch.autograd.grad(..., create_graph=True) in the loss.",
            code="create-graph",
        )


def came_in_pieces(name: str) -> ModelError:
    """Returns the error for a parameter whose gradient grows after it was sent."""
    return ModelError(
        f"the gradient of {name!r} came in several pieces in one backward pass, after it had been sent. The cause is "
        "checkpoint(..., use_reentrant=True) over parameters that are also used elsewhere: pass use_reentrant=False.",
        code="gradient-in-parts",
    )
