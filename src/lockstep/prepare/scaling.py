"""Loss scaling for float16 by PyTorch's GradScaler, applied to synchronized gradients and so alike on all ranks.

The loss of every shard is scaled. At the end of each phase the gradients are unscaled, so the script sees true ones. They
are equal on all ranks, so all ranks detect an overflow together: optimizers skip the step that would use these gradients,
and the scale is reduced.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, amp
from torch.optim import Optimizer

from lockstep.base.errors import UsageError
from lockstep.prepare.state_adapters import parameters_of
from lockstep.world.comm.dtensors import full_tensor


class LossScaling:
    """Scales the losses of a run. The script has no scaler, and sees true losses and gradients.

    Args:
        device: ``cpu``, ``cuda`` ....
    """

    def __init__(self, device: str) -> None:
        self.scaler = amp.GradScaler(device)
        self._one = torch.ones((), device=device)
        self.scaler.scale(self._one)  # creates its scale, which a rank without samples needs too
        self._optimizers: list[Optimizer] = []
        self._overflowed: set[int] = set()
        """The ids of optimizers whose gradients have overflowed since their last step."""

    def attach(self, optimizer: Optimizer) -> None:
        """Add an optimizer: its gradients are unscaled, and its ``step()`` does nothing after an overflow."""
        self._optimizers.append(optimizer)
        act, overflowed = optimizer.step, self._overflowed

        def step(self: Optimizer, closure: Callable[[], float] | None = None) -> Any:
            if closure is not None:
                raise UsageError(
                    f"{type(self).__name__}.step(closure) in a run that scales the loss: whether a step must be skipped is "
                    "known only after its backward pass, which the closure runs. Use precision='32-true' or 'bf16-mixed'."
                )
            if id(self) in overflowed:
                overflowed.discard(id(self))
                finite = [full_tensor(p.grad.isfinite().all()) for p in parameters_of(self) if p.grad is not None]
                are_finite = not finite or torch.stack([each.to(finite[0].device) for each in finite]).all()
                if not are_finite:  # else they were cleared
                    return None
            return act()

        # A bound method like the original: schedules use its __func__. Attributes that they have set on it are kept.
        step.__dict__.update(getattr(act, "__dict__", {}))
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the current scale."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self) -> None:
        """Unscale the synchronized gradients. The scale shrinks after an overflow, and grows after many phases without."""
        with_gradients = [o for o in self._optimizers if any(p.grad is not None for p in parameters_of(o))]
        if not with_gradients:
            return
        for optimizer in with_gradients:
            self.scaler.unscale_(optimizer)
        before = self.scaler.scale(self._one)  # the scale, on the device
        self.scaler.update()
        if self.scaler.scale(self._one) < before:  # the only wait for a GPU: get_scale() would wait, too
            self._overflowed.update(map(id, with_gradients))
