"""PyTorch's DTensors, of which every rank has a part, such as the parameters after
``fully_shard``."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

_HOME = "torch.distributed.tensor"
_PLAIN = frozenset({Tensor, nn.Parameter, nn.Buffer})


def is_dtensor(tensor: object) -> TypeGuard[Any]:
    """Whether ``tensor`` is a DTensor. (Importing their module takes a second or two; if it is not
    imported, there is none.)"""
    if type(tensor) in _PLAIN:  # nearly all, and this takes a quarter of the time
        return False
    module = sys.modules.get(_HOME)
    return module is not None and isinstance(tensor, module.DTensor)


def is_cut(tensor: object) -> TypeGuard[Any]:
    """Whether ``tensor`` is a DTensor cut along its first dimension, in the order of the ranks, as
    by ``fully_shard``."""
    return is_dtensor(tensor) and tensor.placements == (sys.modules[_HOME].Shard(0),)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a DTensor, on this rank's device, without gradient: a collective. Other
    tensors are returned themselves."""
    if not is_dtensor(tensor):
        return tensor
    if not is_cut(tensor):
        full: Tensor = tensor.detach().full_tensor()
        return full
    # The collective of DTensor.full_tensor crashes over Gloo for tensors on a GPU
    # (pytorch/pytorch#152645).
    group: Any = tensor.device_mesh.get_group()
    local = tensor.detach().to_local()
    # all_gather needs parts of one length, and rank 0's is the longest. Only the last parts are
    # shorter (5 rows over 4 ranks: 2, 2, 1, 0), so all padding is behind the tensor's last row, and
    # a slice removes it.
    longest = len(rows_of(len(tensor), 0, group.size()))
    padded = local.new_zeros(longest, *tensor.shape[1:])
    padded[: len(local)] = local
    if not padded.numel():  # Gloo divides by it
        return torch.empty_like(padded).reshape(tensor.shape)
    parts = [torch.empty_like(padded) for _ in range(group.size())]
    dist.all_gather(parts, padded, group=group)
    return torch.cat(parts)[: len(tensor)]


def to_local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; other tensors themselves. Local."""
    local: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return local


def distribute_like(value: Tensor, like: Tensor) -> Tensor:
    """Distributes a full tensor, which every rank must have, like another one. Local."""
    if not is_dtensor(like) or is_dtensor(value):
        return value
    distribute = sys.modules[_HOME].distribute_tensor
    distributed: Tensor = distribute(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return distributed


def cut_like(rows: Tensor, like: Tensor) -> Tensor:
    """The DTensor cut like another one (see ``is_cut``) of which this rank has these rows: see
    ``own_rows``. Local."""
    kind: Any = sys.modules[_HOME].DTensor
    rows = rows.to(like.device)
    # As fully_shard makes its gradients: from_local() is 25 times as slow, in every step.
    if rows.dtype == like.dtype:
        made: Tensor = kind(rows, like._spec, requires_grad=False)  # type: ignore[attr-defined]
    else:
        mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
        made = kind.from_local(rows, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())
    return made


def rows_of(num_rows: int, rank: int, world_size: int) -> range:
    """The rows of a cut tensor that a rank has, as ``Shard(0)`` deals them out: equal chunks, of
    which the last that is not empty may be shorter."""
    chunk = -(-num_rows // world_size)
    return range(min(num_rows, rank * chunk), min(num_rows, (rank + 1) * chunk))


def own_rows(tensor: Tensor) -> range:
    """The rows of a cut DTensor that this rank has. Local."""
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    return rows_of(len(tensor), mesh.get_local_rank(), mesh.size())


def sum_over_ranks(numbers: Tensor, like: Tensor) -> Tensor:
    """The sums of numbers over the ranks that have a part of the DTensor ``like``: a collective
    among them."""
    mesh = like.device_mesh  # type: ignore[attr-defined]
    sums = numbers.to(like.device)
    if mesh.size() > 1:
        dist.all_reduce(sums, group=mesh.get_group())
    return sums
