"""In which floating-point formats a model runs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.errors import unknown_name


@dataclass(frozen=True, kw_only=True)
class Precision:
    """One row of the table below."""

    autocast_dtype: torch.dtype | None = None
    """What matrix products and convolutions are computed in; None: what the weights are in."""
    scales_loss: bool = False
    """Whether the loss is scaled, so that small gradients do not vanish."""

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """The context in which forward passes run."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.autocast_dtype)


_TABLE = {
    "32-true": Precision(),
    "bf16-mixed": Precision(autocast_dtype=torch.bfloat16),
    "16-mixed": Precision(autocast_dtype=torch.float16, scales_loss=True),
}


def find_precision(name: str) -> Precision:
    """The precision of that name.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    if name not in _TABLE:
        raise unknown_name("precision", name, _TABLE)
    return _TABLE[name]
