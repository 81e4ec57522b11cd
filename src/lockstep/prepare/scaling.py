"""Loss scaling for float16: PyTorch's GradScaler, acting when gradients have met, and so alike on all ranks.

The loss of every shard is scaled. As soon as the gradients of a phase are there they are unscaled, so that the script sees
true ones. They are equal on all ranks, which therefore find an overflow together: optimizers leave out the step that would
use it, and the scale becomes smaller for all of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, amp
from torch.optim import Optimizer

from lockstep.errors import UsageError


class LossScaling:
    """The scaler of a run that scales its losses: the script has none of its own, and sees true losses.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self.scaler = amp.GradScaler(device)
        self.scaler.scale(torch.zeros((), device=device))  # it makes its scale then: a rank without samples needs one too
        self._optimizers: list[Optimizer] = []
        self._overflowed: set[int] = set()
        """Optimizers whose gradients have overflowed since their last step, by id."""

    def attach(self, optimizer: Optimizer) -> None:
        """A prepared optimizer: its gradients are unscaled, and its ``step()`` does nothing after an overflow."""
        self._optimizers.append(optimizer)
        act, overflowed = optimizer.step, self._overflowed

        def step(self: Optimizer, closure: Callable[[], float] | None = None) -> Any:
            if closure is not None:
                raise UsageError(
                    f"{type(self).__name__}.step(closure) in a run that scales the loss: whether a step is to be left out "
                    "is known only after its backward pass, which the closure makes. Use precision='32-true' or 'bf16-mixed'."
                )
            if id(self) in overflowed:
                overflowed.discard(id(self))
                gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
                if not all(bool(gradient.isfinite().all()) for gradient in gradients):  # else they were cleared since
                    return None
            return act()

        # A bound method, as the original is: schedules look at its __func__. What they have noted on the original is kept.
        step.__dict__.update(getattr(act, "__dict__", {}))
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, so much larger that its gradients do not vanish in float16."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self) -> None:
        """Gradients have met: make them true ones. After an overflow the scale becomes smaller, after many phases larger."""
        have_met = [
            one for one in self._optimizers if any(p.grad is not None for g in one.param_groups for p in g["params"])
        ]
        if not have_met:
            return
        for optimizer in have_met:
            self.scaler.unscale_(optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        if self.scaler.get_scale() < before:
            self._overflowed.update(map(id, have_met))
