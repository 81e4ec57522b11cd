"""Values passed to ``batch.add`` and ``Evaluation.add``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.errors import ConfigError


def mean_of(name: str, value: Any) -> Any:
    """A number as a float, or the mean of a tensor of one value per sample: a float64 scalar on the tensor's device.

    Raises:
        ConfigError: the value is neither.
    """
    if hasattr(value, "__array__"):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return value.detach().double().mean()
    if not hasattr(value, "__float__"):
        raise ConfigError(f"add({name}={value!r}): a value must be a number, or a tensor of one value per sample")
    return float(value)
