"""``Context``: whether gradients and autocast are on where an operation is noted, and again where
it is computed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Context:
    """The modes of torch that an operation depends on."""

    gradients: bool
    device: str
    autocast: torch.dtype | None
    """The dtype of autocast; None: it is off."""

    @classmethod
    def now(cls, device: str) -> Context:
        """That of the running code."""
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return cls(torch.is_grad_enabled(), device, dtype)

    def again(self, *, gradients: bool = True) -> contextlib.AbstractContextManager[Any]:
        """The same modes, for a block. ``gradients=False``: without gradients, whatever they
        were."""
        now, wanted = Context.now(self.device), self.gradients and gradients
        if now.gradients == wanted and now.autocast == self.autocast:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        stack.enter_context(torch.set_grad_enabled(wanted))
        stack.enter_context(torch.autocast(self.device, self.autocast, enabled=self.autocast is not None))
        return stack
