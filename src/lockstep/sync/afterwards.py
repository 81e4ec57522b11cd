"""Sums of gradients brought together in one piece, after the backward pass, through a process group."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from lockstep.sync.gradients import Gradients, widen


def sparse_weights(model: nn.Module) -> list[Parameter]:
    """The parameters whose gradients are sparse."""
    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse]
    return [weight for m in embeddings if isinstance(weight := m.weight, Parameter)]


def reduce_afterwards(
    parameters: list[Parameter], sums: Gradients, share: float, sparse: Sequence[Parameter], group: dist.ProcessGroup | None
) -> Tensor:
    """Add the last shard's gradients to the sums of this process's shards, and sum them over the ranks of a group.

    Every rank of the group must call it, with equally many parameters; it blocks until they have. A parameter that no rank
    used is not in ``sums`` afterwards.

    Args:
        parameters: those that learn.
        sums: of the earlier shards; changed in place.
        share: the weight of the last shard.
        sparse: parameters whose gradients are sparse.
        group: the ranks that meet; None: there is only this one.

    Returns:
        How many ranks used each parameter, and, at the end, how many have used some but not all of them.
    """
    partial = add_last(parameters, sums, share)
    used = torch.tensor([float(p in sums) for p in parameters] + [float(partial)])
    if group is not None:
        dist.all_reduce(used, group=group)
        add_absent(parameters, sums, used.tolist(), sparse)
        _all_reduce_sums(sums, group)
    return used


def add_last(parameters: list[Parameter], sums: Gradients, share: float) -> bool:
    """Add the last shard's gradients to the sums. Whether it used some of the parameters, but not all."""
    missing = 0
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            missing += 1
            continue
        if share == 0:
            continue
        part = widen(gradient).mul_(share)
        sums[parameter] = sums[parameter].add_(part) if parameter in sums else part
    return 0 < missing < len(parameters)


def add_absent(trainable: list[Parameter], sums: Gradients, used: list[float], sparse: Sequence[Parameter]) -> None:
    """Put sums in order, with zeros for what only other ranks have. What no rank used stays without a gradient."""
    for parameter, count in zip(trainable, used, strict=False):
        found = sums.pop(parameter, None)
        if found is None and count > 0:
            like = widen(parameter.detach())
            is_sparse = any(parameter is weight for weight in sparse)
            found = torch.zeros_like(like, layout=torch.sparse_coo if is_sparse else torch.strided)
        if found is not None:
            sums[parameter] = found


def _all_reduce_sums(sums: Gradients, group: dist.ProcessGroup) -> None:
    """Sum over the ranks, one tensor for each device and dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Parameter]] = {}
    for parameter, gradient in sums.items():
        if gradient.is_sparse:
            sums[parameter] = _all_reduce_sparse(gradient, group)
        else:
            kinds.setdefault((gradient.device, gradient.dtype), []).append(parameter)
    for alike in kinds.values():
        flat = torch.cat([sums[parameter].flatten() for parameter in alike])
        dist.all_reduce(flat, group=group)
        for parameter, part in zip(alike, torch.split(flat, [p.numel() for p in alike]), strict=True):
            sums[parameter] = torch.empty_like(parameter, dtype=part.dtype).copy_(part.view(parameter.shape))


def _all_reduce_sparse(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    gradient = gradient.coalesce()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are announced as a beta feature of PyTorch
        dist.all_reduce(gradient, group=group)
    return gradient
