"""Weighted sums of the gradients of a process's shards, and hooks for their arrival in a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from lockstep.base.errors import ModelError, UsageError

Gradients = dict[Parameter, Tensor]


def detach_grads(parameters: Iterable[Parameter]) -> Gradients:
    """Remove and return the gradients of parameters, so that the next backward pass begins with none.

    Autograd then creates each gradient anew, in the same way on every process; accumulating would round differently.
    """
    detached: Gradients = {}
    for parameter in parameters:
        if parameter.grad is not None:
            detached[parameter] = parameter.grad
            parameter.grad = None
    return detached


def put_back(detached: Gradients) -> None:
    """Add detached gradients to those computed since."""
    for parameter, gradient in detached.items():
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
        parameter.grad = gradient


def is_narrow(tensor: Tensor) -> bool:
    """Whether a tensor has a 16-bit floating-point dtype."""
    return tensor.dtype in (torch.float16, torch.bfloat16)


def widen(tensor: Tensor) -> Tensor:
    """A 16-bit tensor as float32, in which gradients are weighted and summed; others as they are."""
    return tensor.float() if is_narrow(tensor) else tensor


def add_weighted(parameters: Iterable[Parameter], sums: Gradients, weight: float) -> None:
    """Move the gradients of parameters into ``sums``, multiplied by ``weight``. Those of weight 0 are dropped."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        parameter.grad = None
        if weight != 0:
            part = widen(gradient) if weight == 1.0 else widen(gradient).mul_(weight)
            earlier = sums.get(parameter)  # looked up once: hashing a tensor is a call in Python
            sums[parameter] = part if earlier is None else earlier.add_(part)


def has_gradient(parameter: Tensor) -> bool:
    """Whether a parameter is of a dtype that has gradients."""
    return parameter.is_floating_point() or parameter.is_complex()


def on_gradient(parameter: Parameter, notify: Callable[[Parameter], None]) -> RemovableHandle:
    """Have autograd call ``notify`` whenever it has put a gradient into ``.grad``, of a frozen parameter once it learns."""
    learns = parameter.requires_grad
    parameter.requires_grad_(True)  # a frozen parameter accepts no hook, but keeps one
    hook: RemovableHandle = parameter.register_post_accumulate_grad_hook(notify)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(learns)
    return hook


def take_gradient(parameter: Tensor, name: str) -> Tensor:
    """Remove and return a gradient that autograd has just put into ``.grad``.

    Raises:
        ModelError: it is gone already, or sparse.
    """
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        raise ModelError(
            f"a hook of the script removed the gradient of {name!r} in the backward pass, before it was combined with those of "
            "the other shards: use the whole gradient after the loop over batch.shards instead"
        )
    if gradient.is_sparse:
        raise ModelError(
            f"parameter {name!r} has a sparse gradient, which has no place in the fixed tree: use a dense one "
            "(Embedding(sparse=False); for SparseAdam, weight.grad = weight.grad.to_sparse(1) after the loop over "
            "batch.shards), or strategy='ddp', whose answer is the same up to rounding"
        )
    return gradient


def refuse_create_graph(options: dict[str, Any], strategy: str) -> None:
    """Raises:
    UsageError: the options of a backward pass ask for a graph of gradients.
    """
    if options.get("create_graph"):
        raise UsageError(
            f"backward(create_graph=True) with strategy {strategy!r}: synchronized gradients have no graph and cannot be "
            "differentiated. For a penalty on gradients use torch.autograd.grad(..., create_graph=True) in the loss."
        )


def came_in_parts(name: str) -> ModelError:
    """The error for a parameter whose gradient grows after it was sent."""
    return ModelError(
        f"the gradient of {name!r} came in several parts in one backward pass, after it had been sent: checkpoint(..., "
        "use_reentrant=True) over parameters that are used elsewhere too does that. Use use_reentrant=False."
    )
