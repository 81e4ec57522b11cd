"""``NotingOptimizer``: accelerate's optimizer, which notes that gradients were used or dropped."""

from __future__ import annotations

from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from torch.optim import Optimizer


class NotingOptimizer(AcceleratedOptimizer):  # type: ignore[misc]
    """An optimizer that steps where accelerate says that gradients are complete.

    Args:
        optimizer: prepared by the team.
        counts: its item ``since`` becomes False when gradients are used or dropped.
    """

    def __init__(self, optimizer: Optimizer, counts: dict[str, Any]) -> None:
        super().__init__(optimizer, device_placement=False)
        self._counts = counts

    def step(self, closure: Any = None) -> None:
        """Step, unless gradients of more batches are to come."""
        super().step(closure)
        if self.gradient_state.sync_gradients:
            self._counts["since"] = False

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop gradients, unless gradients of more batches are to come."""
        super().zero_grad(set_to_none)
        if self.gradient_state.sync_gradients:
            self._counts["since"] = False
