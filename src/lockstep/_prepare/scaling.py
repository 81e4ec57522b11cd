"""Loss scaling for float16 by PyTorch's GradScaler, applied to synchronized gradients and so the
same on all ranks.

::

    shard        loss * scale -> backward -> scaled gradients
    end_phase    sum over shards and ranks -> unscale -> any inf or NaN? -> skip the step, scale / 2

The script sees unscaled gradients. A scaler on each rank would see only that rank's overflow, and
the ranks would then take different steps with different scales. After the sum, an inf or NaN of one
shard is in every rank's gradients, so all ranks decide the same without a message.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, amp
from torch.nn import Parameter
from torch.optim import Optimizer

from lockstep._base.errors import UsageError
from lockstep._prepare.state_adapters import parameters_of
from lockstep._sync.gradients import Gradients
from lockstep._world.comm.dtensors import full_tensor


class LossScaling:
    """The scaling of a run's losses. The script has no scaler, and sees unscaled losses and
    gradients.

    Args:
        device: the kind of device: ``cpu``, ``cuda`` ....
    """

    def __init__(self, device: str) -> None:
        self.scaler = amp.GradScaler(device)
        self._one = torch.ones((), device=device)
        self.scaler.scale(self._one)  # creates its scale, which a rank without samples needs too
        self._optimizers: list[Optimizer] = []
        self._overflowed: set[int] = set()
        """The ids of optimizers whose gradients have overflowed and were not cleared yet."""

    def attach(self, optimizer: Optimizer) -> None:
        """Adds an optimizer: its ``step()`` does nothing after an overflow."""
        self._optimizers.append(optimizer)
        act, overflowed = optimizer.step, self._overflowed

        def step(self: Optimizer, closure: Callable[[], float] | None = None) -> Any:
            if closure is not None:
                raise UsageError(
                    f"{type(self).__name__}.step(closure) in a run that scales the loss: an overflow is known only after the "
                    "backward pass, which the closure runs. Use precision='32-true' or 'bf16-mixed'.",
                    code="closure-with-scaling",
                )
            if id(self) in overflowed:
                overflowed.discard(id(self))
                return None
            return act()

        # A bound method like the original, since schedules use its __func__ and set attributes on
        # it.
        step.__dict__.update(getattr(act, "__dict__", {}))
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    def state_dict(self) -> dict[str, Any]:
        """Returns the scaler's state, and the numbers of the optimizers whose gradients have
        overflowed and were not cleared yet."""
        overflowed = [number for number, optimizer in enumerate(self._optimizers) if id(optimizer) in self._overflowed]
        return {**self.scaler.state_dict(), "overflowed": overflowed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state, after the run's optimizers were attached."""
        self.scaler.load_state_dict(state)
        self._overflowed.clear()
        self._overflowed.update(id(self._optimizers[number]) for number in state["overflowed"])

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss times the current scale."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def begin_phase(self, carried: Gradients) -> None:
        """Ends the overflow of optimizers whose gradients were cleared. ``carried``: the gradients
        from before the phase."""
        for optimizer in self._optimizers if self._overflowed else ():
            earlier = [carried[parameter] for parameter in parameters_of(optimizer) if parameter in carried]
            if _all([gradient.eq(0).all() for gradient in earlier], self._one):
                self._overflowed.discard(id(optimizer))

    def unscale(self, parameters: Iterable[Parameter]) -> None:
        """Unscales the synchronized gradients of these parameters and of the optimizers'. The scale
        shrinks after an overflow, and grows after many phases without one."""
        # Each parameter once: unscaling a shared parameter twice would divide by the square.
        every = list(dict.fromkeys([*parameters, *(p for each in self._optimizers for p in parameters_of(each))]))
        if all(parameter.grad is None for parameter in every):
            return
        self.scaler.unscale_(torch.optim.SGD(every))  # the method accepts only an optimizer
        before = self.scaler.scale(self._one)  # the scale, on the device
        self.scaler.update()
        # The only wait for a GPU. An overflow shows as a smaller scale, without a look at
        # gradients.
        if self.scaler.scale(self._one) < before:
            are_finite = [
                _all([p.grad.isfinite().all() for p in parameters_of(optimizer) if p.grad is not None], self._one)
                for optimizer in self._optimizers
            ]
            for optimizer, is_finite in zip(
                self._optimizers, torch.stack([self._one, *are_finite]).tolist()[1:], strict=True
            ):
                if not is_finite:
                    self._overflowed.add(id(optimizer))


def _all(conditions: Iterable[Tensor], like: Tensor) -> Tensor:
    """Returns whether all conditions are true, as 1 or 0 in the form of ``like``."""
    found = [full_tensor(condition).to(like) for condition in conditions]
    return torch.stack(found).amin() if found else torch.ones_like(like)
