"""Weighted sums of the gradients of a process's shards."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

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


def widen(gradient: Tensor) -> Tensor:
    """A 16-bit gradient as float32, in which it is weighted and summed; others as they are."""
    return gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient


def add_weighted(parameters: Iterable[Parameter], sums: Gradients, weight: float) -> None:
    """Move the gradients of parameters into ``sums``, multiplied by ``weight``. Those of weight 0 are dropped."""
    for parameter, gradient in detach_grads(parameters).items():
        if weight == 0:
            continue
        part = widen(gradient)
        if weight != 1.0:
            part = part.mul_(weight)
        sums[parameter] = sums[parameter].add_(part) if parameter in sums else part


class ShardSums:
    """Weighted sums over the shards that have run, separately for each backward call of a micro-step.

    Backward calls (for two losses, say) may have weights of different kinds: the first calls of all shards are summed
    together, and so are the second ones.
    """

    def __init__(self) -> None:
        self._sums: dict[int, Gradients] = {}

    def add(self, call: int, parameters: Iterable[Parameter], weight: float) -> None:
        """Move the gradients of the shard that has just run into the sum of this call.

        A shard of weight 0 (no tokens) is left out: its loss may be a mean over nothing, and its gradients NaN.
        """
        add_weighted(parameters, self._sums.setdefault(call, {}), weight)

    def put(self, call: int, sums: Gradients) -> None:
        """Set the sums of a call."""
        self._sums[call] = sums

    def take(self, call: int) -> Gradients:
        """Remove and return the sums of a call."""
        return self._sums.pop(call, {})

    def clear(self) -> None:
        """Discard all sums."""
        self._sums.clear()


def install(sums: Gradients) -> None:
    """Set ``.grad`` of each parameter to its sum, in the parameter's dtype."""
    for parameter, gradient in sums.items():
        parameter.grad = gradient.to(parameter.dtype)


def divide(gradients: Iterable[Tensor], total: float) -> None:
    """Divide gradients by ``total``, in place."""
    for gradient in gradients:
        gradient.div_(total)
