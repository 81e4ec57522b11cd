"""In which floating-point formats a model is kept, and runs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from lockstep.errors import unknown_name


class CastScope(Enum):
    """How much of a training is in the 16-bit format of a precision."""

    OPERATIONS = "the operations that gain by it, as PyTorch's autocast chooses"
    PASSES = "forward and backward passes, with copies of the weights; normalisations that keep statistics stay as they are"
    WEIGHTS = "all: the weights themselves, and so their gradients and the optimizer's state"


@dataclass(frozen=True, kw_only=True)
class Precision:
    """One row of the table below."""

    name: str
    narrow: torch.dtype | None = None
    """The 16-bit format; None: everything is computed in the format that it has."""
    reach: CastScope = CastScope.OPERATIONS
    scales_loss: bool = False
    """Whether the loss is scaled, so that small gradients do not vanish."""

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """The context for what is computed outside of a prepared model's forward pass."""
        if self.narrow is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.narrow)


_TABLE = {
    row.name: row
    for row in (
        Precision(name="32-true"),
        Precision(name="16-mixed", narrow=torch.float16, scales_loss=True),
        Precision(name="16-master", narrow=torch.float16, reach=CastScope.PASSES, scales_loss=True),
        Precision(name="16-true", narrow=torch.float16, reach=CastScope.WEIGHTS),
        Precision(name="bf16-mixed", narrow=torch.bfloat16),
        Precision(name="bf16-true", narrow=torch.bfloat16, reach=CastScope.WEIGHTS),
    )
}


def find_precision(name: str) -> Precision:
    """The precision of that name.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    if name not in _TABLE:
        raise unknown_name("precision", name, _TABLE)
    return _TABLE[name]
