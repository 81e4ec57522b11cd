"""Gradients of a process's shards, added up one after another by weight."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.errors import LossError

Gradients = dict[Parameter, Tensor]


def set_aside(parameters: Iterable[Parameter]) -> Gradients:
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


class ShardSums:
    """Weighted sums over the shards that have run, kept apart for each backward call of a micro-step.

    A body with two backward calls (two losses, two models) makes the same calls for each shard: the first calls of all
    shards belong together, and so do the second ones.
    """

    def __init__(self) -> None:
        self._sums: dict[int, Gradients] = {}

    def add(self, call: int, parameters: Iterable[Parameter], weight: float) -> None:
        """Move the gradients of the shard that has just run into the sum of this call.

        A shard of weight 0 (no tokens) is absent: its loss may be a mean over nothing, and its gradients NaN.
        """
        sums = self._sums.setdefault(call, {})
        for parameter, gradient in set_aside(parameters).items():
            if weight == 0:
                continue
            part = widen(gradient)
            if weight != 1.0:
                part = part.mul_(weight)
            sums[parameter] = sums[parameter].add_(part) if parameter in sums else part

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


def check_total(total: float, step: int) -> None:
    """Make sure that a step has some weight.

    Raises:
        LossError: the weights of all its shards sum to zero. All ranks find that at the same time.
    """
    if total == 0:
        raise LossError(
            f"the weights of all shards of step {step} sum to zero, so its gradient is 0/0: there was nothing to learn from "
            "in the whole global batch (no tokens?). Leave such batches out of the data."
        )


def divide(gradients: Iterable[Tensor], total: float) -> None:
    """Divide by the weights' sum, in place."""
    for gradient in gradients:
        gradient.div_(total)
