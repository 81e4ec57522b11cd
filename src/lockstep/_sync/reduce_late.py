"""Reducing gradients over ranks without overlap, after all shards of a phase have run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import Parameter

from lockstep._sync.gradients import Gradients, widen


def reduce_late(parameters: list[Parameter], sums: Gradients, world_size: int) -> bool:
    """Sums the gradients of this process's shards over the ranks.

    Every rank must call it, with equally many parameters; it blocks until all have. Parameters that
    no rank used are not in ``sums`` afterwards.

    Args:
        parameters: those with ``requires_grad``.
        sums: this process's sums; changed in place.
        world_size: number of ranks.

    Returns:
        Whether every rank that used any parameter used all of them.
    """
    num_used = sum(parameter in sums for parameter in parameters)
    partial = 0 < num_used < len(parameters)
    if world_size == 1:
        return num_used > 0 and not partial
    used = torch.tensor([float(p in sums) for p in parameters] + [float(partial)])
    dist.all_reduce(used)
    add_absent(parameters, sums, used.tolist())
    _all_reduce_sums(sums)
    return bool(used[:-1].any()) and not used[-1]


def add_absent(trainable: list[Parameter], sums: Gradients, used: list[float]) -> None:
    """Orders ``sums`` as ``trainable``, with zeros for parameters that only other ranks used.
    ``used``: for each parameter, the number of ranks that used it."""
    for parameter, count in zip(trainable, used, strict=False):
        gradient = sums.pop(parameter, None)
        if gradient is None and count > 0:
            gradient = torch.zeros_like(widen(parameter.detach()))
        if gradient is not None:
            sums[parameter] = gradient


def _all_reduce_sums(sums: Gradients) -> None:
    """Sums over the ranks, one tensor for each device and dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Parameter]] = {}
    for parameter, gradient in sums.items():
        kinds.setdefault((gradient.device, gradient.dtype), []).append(parameter)
    for alike in kinds.values():
        flat = torch.cat([sums[parameter].flatten() for parameter in alike])
        dist.all_reduce(flat)
        for parameter, total in zip(alike, torch.split(flat, [p.numel() for p in alike]), strict=True):
            sums[parameter] = torch.empty_like(parameter, dtype=total.dtype).copy_(total.view(parameter.shape))
