"""Copying many tensors by few kernels."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copys into the first tensor of each pair from the second. On a device that takes one kernel
    for all tensors of the same kind: PyTorch copies a list one by one where its tensors have
    several dtypes, or the two lists have other strides."""
    alike: dict[tuple[torch.dtype, torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in pairs:
        key = target.dtype, source.dtype, target.stride() == source.stride()
        targets, sources = alike.setdefault(key, ([], []))
        targets.append(target)
        sources.append(source)
    for targets, sources in alike.values():
        torch._foreach_copy_(targets, sources)
