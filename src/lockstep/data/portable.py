"""States as tensors and plain values, which ``torch.load(..., weights_only=True)`` reads."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from lockstep.base.trees import mapped

_ARRAY = "lockstep: array"


def to_portable(state: Any) -> Any:
    """The same tree with tensors in the place of NumPy's arrays, each marked."""

    def leaf(value: Any) -> Any:
        is_array = isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf"
        return {_ARRAY: torch.from_numpy(value.copy())} if is_array else value

    return mapped(state, leaf)


def from_portable(state: Any) -> Any:
    """What ``to_portable`` was given."""
    if isinstance(state, dict) and state.keys() == {_ARRAY}:
        return state[_ARRAY].numpy().copy()
    if isinstance(state, dict):
        return {key: from_portable(value) for key, value in state.items()}
    if isinstance(state, list):
        return [from_portable(value) for value in state]
    if type(state) is tuple:
        return tuple(from_portable(value) for value in state)
    return state
