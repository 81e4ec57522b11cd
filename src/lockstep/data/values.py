"""Values that scripts give to ``add``, of shards and of evaluations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.errors import ConfigError


def mean_of(name: str, value: Any) -> Any:
    """The mean of a value: itself, if it is a number, or that of a tensor of one value a sample, in float64 and on its device.

    Raises:
        ConfigError: it is neither.
    """
    if hasattr(value, "__array__"):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return value.detach().double().mean()
    if not hasattr(value, "__float__"):
        raise ConfigError(f"add({name}={value!r}): a value must be a number, or a tensor of one value a sample")
    return float(value)
