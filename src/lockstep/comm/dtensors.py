"""Tensors of which every rank holds a part: PyTorch's DTensors, as ``fully_shard`` makes them of parameters."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

from torch import Tensor

_HOME = "torch.distributed.tensor"


def is_dtensor(tensor: object) -> TypeGuard[Any]:
    """Whether it is a DTensor. (Importing that module takes a second or two: where nobody has, there is none.)"""
    module = sys.modules.get(_HOME)
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, on this rank's device. Of a DTensor every rank must call it; others are returned themselves."""
    found: Tensor = tensor.full_tensor() if is_dtensor(tensor) else tensor
    return found


def to_local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor. Local."""
    found: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return found


def distribute_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every rank has, spread as another one is: this rank keeps its part. Local."""
    if not is_dtensor(like) or is_dtensor(value):
        return value
    distribute = sys.modules[_HOME].distribute_tensor
    found: Tensor = distribute(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return found
