"""Loss scaling for float16: PyTorch's GradScaler, acting once a step and alike on all ranks.

The gradients that it looks at are those of the whole step, which are equal on all ranks. So they all find an overflow
together, skip the step together, and go on with the same scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
        self._optimizers: list[Optimizer] = []
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()
        self._acting = False

    def attach(self, optimizer: Optimizer) -> None:
        """A prepared optimizer: its gradients are unscaled before they are clipped, or used."""
        self._optimizers.append(optimizer)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, so much larger that its gradients do not vanish in float16."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, parameters: Iterable[Tensor]) -> None:
        """Make the gradients of these parameters true ones, with those of all that their optimizers have. Once a step."""
        wanted = {id(parameter) for parameter in parameters}
        for optimizer in self._optimizers:
            own = {id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
            if id(optimizer) not in self._unscaled and not own.isdisjoint(wanted):
                self._unscaled.add(id(optimizer))
                self.scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer, act: Callable[[], Any]) -> None:
        """Unscale, and call ``act``, the optimizer's own step, unless a gradient has overflowed.

        (The scaler calls ``optimizer.step()``, which has been replaced by a method that leads here again.)
        """
        if self._acting:
            act()
            return
        gradients = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        if next(gradients, None) is None:
            act()  # the scaler refuses an optimizer that has nothing to look at
            return
        self._acting = True
        try:
            self.scaler.step(optimizer)
        finally:
            self._acting = False
        self._stepped.add(id(optimizer))

    def end_step(self) -> None:
        """The step is over: after an overflow the scale becomes smaller, and after many good steps larger.

        Raises:
            UsageError: gradients were clipped and kept for another step: they are true ones, and those to come are scaled.
        """
        for optimizer in self._optimizers:
            gradients = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
            if id(optimizer) in self._unscaled - self._stepped and next(gradients, None) is not None:
                raise UsageError(
                    f"clip_grad_norm_() in a step without {type(optimizer).__name__}.step(), in a run that scales the loss: "
                    "the gradients that are kept are unscaled, and those of the next step will be scaled. Clip only when the "
                    "optimizer steps; to add up several batches use accumulate=k."
                )
        if self._stepped or self._unscaled:
            self.scaler.update()
        self._unscaled.clear()
        self._stepped.clear()
