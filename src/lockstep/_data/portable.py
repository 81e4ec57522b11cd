"""Converts states to tensors and plain values, which ``torch.load(..., weights_only=True)``
reads."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from lockstep._base.trees import mapped

_ARRAY = "lockstep: array"


def to_portable(state: Any) -> Any:
    """Return the same tree with marked tensors in the place of NumPy arrays."""

    def leaf(value: Any) -> Any:
        is_array = isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf"
        return {_ARRAY: torch.from_numpy(value.copy())} if is_array else value

    return mapped(state, leaf)


def from_portable(state: Any) -> Any:
    """Return the state from which ``to_portable`` made this one, on the CPU.

    ``torch.load(..., map_location=device)`` moves all tensors of a checkpoint, but generators need
    their state on the CPU."""
    if isinstance(state, dict) and state.keys() == {_ARRAY}:
        return state[_ARRAY].cpu().numpy().copy()
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: from_portable(value) for key, value in state.items()}
    if isinstance(state, list):
        return [from_portable(value) for value in state]
    if type(state) is tuple:
        return tuple(from_portable(value) for value in state)
    return state
