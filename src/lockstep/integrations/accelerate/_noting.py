"""accelerate's optimizer, which also records when gradients were used or dropped."""

from __future__ import annotations

from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from torch.optim import Optimizer


class NotingOptimizer(AcceleratedOptimizer):  # type: ignore[misc]
    """An optimizer that steps only when gradients are complete (``GradientState.sync_gradients``).

    Args:
        optimizer: the optimizer, prepared by the team.
        counts: the run's counts, whose item ``since`` becomes False when gradients are used or
            dropped.
    """

    def __init__(self, optimizer: Optimizer, counts: dict[str, Any]) -> None:
        super().__init__(optimizer, device_placement=False)
        self._counts = counts

    def step(self, closure: Any = None) -> None:
        """Steps, unless gradients of more batches will be added."""
        super().step(closure)
        if self.gradient_state.sync_gradients:
            self._counts["since"] = False

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops gradients, unless gradients of more batches will be added."""
        super().zero_grad(set_to_none)
        if self.gradient_state.sync_gradients:
            self._counts["since"] = False
