"""Small gradients in one message with the numbers of their phase.

A message has a latency however short it is: tens of microseconds between processes of one machine, and several times that
on a network or a virtual machine. At the end of each phase the ranks exchange the numbers of their ledgers. If all
gradients are small they go into the same message: each rank sends its own to every other, and sums what it receives in
rank order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.sync.gradients import Gradients
from lockstep.world.comm.short import all_gather_short

_ALIGNED = 8
MOST_BYTES = 1 << 20
"""Bytes that a rank receives at most. Larger gradients are better all-reduced in buckets during the backward pass."""


def size_of(parameters: Sequence[Parameter]) -> float:
    """Size of the gradients of these parameters as sent, in bytes; infinite if any is not on the CPU."""
    if not all(parameter.is_cpu for parameter in parameters):
        return math.inf
    return sum(parameter.numel() * max(4, parameter.element_size()) for parameter in parameters)


def fits(size: float, world_size: int) -> bool:
    """Whether gradients of ``size`` bytes are best sent together with the ledger's numbers."""
    return size * (world_size - 1) <= MOST_BYTES


@torch.no_grad()
def gather_parts(row: Sequence[float], parts: Sequence[Tensor]) -> tuple[list[list[float]], list[list[Tensor]]]:
    """Gather a row of numbers and some flat tensors from each rank, in one collective.

    Every rank must call it, with rows of equal length, and equally many parts of the same lengths and dtypes, on the CPU.

    Returns:
        The rows by rank, and for each part those of all ranks, in newly allocated memory.
    """
    head = torch.tensor(row, dtype=torch.float64)
    sizes = [head.nbytes, *(-(-part.nbytes // _ALIGNED) * _ALIGNED for part in parts)]
    message = torch.zeros(sum(sizes), dtype=torch.uint8)
    for space, part in zip(torch.split(message, sizes), (head, *parts), strict=True):
        space[: part.nbytes] = part.view(torch.uint8)
    heads, *bodies = torch.split(all_gather_short(message), sizes, dim=1)
    by_part = [[data[: part.nbytes].view(part.dtype) for data in body] for body, part in zip(bodies, parts, strict=True)]
    return heads.view(torch.float64).tolist(), by_part


@torch.no_grad()
def gather_together(
    row: Sequence[float], calls: Sequence[Gradients], parameters: Sequence[Parameter]
) -> tuple[list[list[float]], list[Gradients]]:
    """Gather a row of numbers from each rank, and sum gradients over the ranks, in one collective.

    Every rank must call it, with rows of equal length, equally many calls, and the same parameters.

    Args:
        row: this rank's numbers.
        calls: this rank's sums for each backward call, on the CPU; parameters may be absent.
        parameters: all parameters for which any rank may have a gradient.

    Returns:
        The rows by rank, and for each call the sums over all ranks; parameters without a gradient on any rank are absent.
    """
    by_format: dict[torch.dtype, list[Parameter]] = {}
    for parameter in parameters:
        by_format.setdefault(torch.promote_types(parameter.dtype, torch.float32), []).append(parameter)
    present = [float(parameter in sums) for sums in calls for parameter in parameters]
    flats = [_flatten(calls, alike, dtype) for dtype, alike in by_format.items()]
    numbers, parts = gather_parts([*row, *present], flats)
    used = [any(column) for column in zip(*(peer_row[len(row) :] for peer_row in numbers), strict=True)]
    totals: list[Gradients] = [{} for _ in calls]
    for (dtype, alike), (total, *peer_parts) in zip(by_format.items(), parts, strict=True):
        for part in peer_parts:
            total += part
        sizes = [parameter.numel() for parameter in alike] * len(calls)
        for index, data in enumerate(torch.split(total, sizes)):
            parameter = alike[index % len(alike)]
            gradient = torch.empty_like(parameter, dtype=dtype).copy_(data.view(parameter.shape))
            totals[index // len(alike)][parameter] = gradient
    pairs = [(gradients, parameter) for gradients in totals for parameter in parameters]
    for (gradients, parameter), is_used in zip(pairs, used, strict=True):
        if not is_used:
            del gradients[parameter]
    return [peer_row[: len(row)] for peer_row in numbers], totals


def _flatten(calls: Sequence[Gradients], parameters: Sequence[Parameter], dtype: torch.dtype) -> Tensor:
    parts = [_as_numbers(sums.get(parameter), parameter, dtype) for sums in calls for parameter in parameters]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=dtype)


def _as_numbers(gradient: Tensor | None, parameter: Parameter, dtype: torch.dtype) -> Tensor:
    if gradient is None:
        return torch.zeros(parameter.numel(), dtype=dtype)
    return (gradient.to_dense() if gradient.is_sparse else gradient).flatten()
