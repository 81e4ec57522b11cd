"""The modes of torch at the line of an operation, which are set again when shards compute it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Context:
    """The modes of torch on which an operation depends.

    A line inside ``torch.no_grad()`` is computed later, in ``backward``, outside of that block.
    """

    gradients: bool
    device: str
    autocast: torch.dtype | None
    """The dtype of autocast; None: autocast is off."""

    @classmethod
    def now(cls, device: str) -> Context:
        """Returns the modes of the running code."""
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return cls(torch.is_grad_enabled(), device, dtype)

    def again(self, *, gradients: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Returns a context manager that sets the same modes for a block; with ``gradients=False``,
        always without gradients."""
        now, wanted = Context.now(self.device), self.gradients and gradients
        if now.gradients == wanted and now.autocast == self.autocast:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        stack.enter_context(torch.set_grad_enabled(wanted))
        stack.enter_context(torch.autocast(self.device, self.autocast, enabled=self.autocast is not None))
        return stack
