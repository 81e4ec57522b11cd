"""Gradients of a process's shards, added up one after another by weight."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

Gradients = dict[Parameter, Tensor]


def detach_grads(parameters: Iterable[Parameter]) -> Gradients:
    """Take away the gradients that parameters have, so that the next backward pass begins with none.

    (Autograd then makes each gradient anew, in the same way on every process; adding to an old one rounds differently.)
    """
    aside: Gradients = {}
    for parameter in parameters:
        if parameter.grad is not None:
            aside[parameter] = parameter.grad
            parameter.grad = None
    return aside


def put_back(aside: Gradients) -> None:
    """Add gradients that were set aside to those that have come since."""
    for parameter, gradient in aside.items():
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
        parameter.grad = gradient


def widen(gradient: Tensor) -> Tensor:
    """16-bit gradients are weighted and summed in float32."""
    return gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient


def add_weighted(parameters: Iterable[Parameter], sums: Gradients, weight: float) -> None:
    """Move the gradients of the shard that has just run into sums."""
    for parameter, gradient in detach_grads(parameters).items():
        if weight == 0:
            continue
        part = widen(gradient)
        if weight != 1.0:
            part = part.mul_(weight)
        sums[parameter] = sums[parameter].add_(part) if parameter in sums else part


class ShardSums:
    """Weighted sums over the shards that have run, kept apart for each backward call of a micro-step.

    Two backward calls (two losses, say) may have weights of different kinds: the first calls of all shards belong together,
    and so do the second ones.
    """

    def __init__(self) -> None:
        self._sums: dict[int, Gradients] = {}

    def add(self, call: int, parameters: Iterable[Parameter], weight: float) -> None:
        """Move the gradients of the shard that has just run into the sum of this call.

        A shard of weight 0 (no tokens) is absent: its loss may be a mean over nothing, and its gradients NaN.
        """
        add_weighted(parameters, self._sums.setdefault(call, {}), weight)

    def put(self, call: int, sums: Gradients) -> None:
        """Take sums for those of a call."""
        self._sums[call] = sums

    def take(self, call: int) -> Gradients:
        """The sum of a call, and forget it."""
        return self._sums.pop(call, {})

    def clear(self) -> None:
        """Forget all sums."""
        self._sums.clear()


def install(sums: Gradients) -> None:
    """Make sums the gradients of their parameters, in the parameters' own dtype."""
    for parameter, gradient in sums.items():
        parameter.grad = gradient.to(parameter.dtype)


def divide(gradients: Iterable[Tensor], total: float) -> None:
    """Divide by the weights' sum, in place."""
    for gradient in gradients:
        gradient.div_(total)
