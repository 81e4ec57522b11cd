"""The floating-point formats in which a model is stored and computed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from lockstep._base.errors import unknown_name


class CastScope(Enum):
    """The parts of training that use the 16-bit format of a precision."""

    OPERATIONS = "the operations chosen by PyTorch's autocast"
    PASSES = "forward and backward passes, with copies of the weights; normalization layers with statistics are not cast"
    WEIGHTS = "everything: the weights, and so their gradients and the optimizer state"


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A precision: the formats of weights and passes."""

    name: str
    narrow: torch.dtype | None = None
    """The 16-bit format; None: nothing is cast."""
    reach: CastScope = CastScope.OPERATIONS
    """The parts of training that use the 16-bit format."""
    scales_loss: bool = False
    """Whether the loss is scaled, so that small gradients do not underflow."""

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Returns the autocast context for computation outside of a prepared model's forward
        pass."""
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
    """Returns the precision with a name.

    Raises:
        ConfigError: the name is unknown. The message lists the valid names.
    """
    if name not in _TABLE:
        raise unknown_name("precision", name, _TABLE)
    return _TABLE[name]
