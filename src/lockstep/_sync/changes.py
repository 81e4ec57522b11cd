"""The arithmetic of buffers' changes. Buffers of one dtype are computed on as one: a device starts
a kernel for all of them, where one for each buffer would cost more than the passes of the model.
Pure.

All tensors of a call are on one device. A packed change is flat float64, exactly: integers are
split into two halves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_LARGEST_BASE = 1e15
"""Differences are taken in float64: from this magnitude on they would have fewer digits than a
float32."""
_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: Tensor) -> Tensor:
    """Returns a floating tensor's bits as integers, whose differences are exact; integers
    themselves."""
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return tensor.view(_AS_INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


def from_bits(bits: Tensor, like: Tensor) -> Tensor:
    """Returns the tensor with these bits, of the dtype of ``like``."""
    if like.is_complex():
        return torch.view_as_complex(bits.clone().view(torch.view_as_real(like).dtype))
    return bits.view(like.dtype) if like.is_floating_point() else bits


def packed_size(start: Tensor) -> int:
    """Returns the length of a packed change of this tensor."""
    # of complex numbers too: two parts
    return start.numel() * (1 if start.is_floating_point() else 2)


def pack_absent(start: Tensor) -> Tensor:
    """Returns the packed change that changes nothing: the neutral element of their sums."""
    nothing = -0.0 if _is_real(start) else 0.0
    return torch.full((packed_size(start),), nothing, dtype=torch.float64, device=start.device)


def pack(starts: Sequence[Tensor], after: Sequence[Tensor], fraction: float, *, is_lowest_shard: bool) -> Tensor:
    """Returns the changes of a shard times its fraction, packed one after the other; of integers
    the change of the lowest shard, and 0 for others."""
    # One float64 message for all dtypes. Halves of 32 bits are exact in it, and only the lowest
    # shard's are not 0, so their sums are exact too. -0.0 is "no change" of a floating buffer.
    parts: list[Sequence[Tensor]] = [()] * len(starts)
    for numbers in _alike(starts):
        change = _difference(_flat(after, numbers), _flat(starts, numbers))
        sizes = [starts[number].numel() for number in numbers]
        if change.is_floating_point():
            change.mul_(fraction)
            pieces = zip(torch.split(change.flatten(), [packed_size(starts[number]) for number in numbers]), strict=True)
        else:
            change = change if is_lowest_shard else torch.zeros_like(change)
            halves = (change >> 32).double(), (change & 0xFFFFFFFF).double()
            pieces = zip(*(torch.split(half, sizes) for half in halves), strict=True)
        for number, piece in zip(numbers, pieces, strict=True):
            parts[number] = piece
    return torch.cat([part for several in parts for part in several])


def changed(starts: Sequence[Tensor], packed: Tensor) -> list[Tensor]:
    """Returns the start values plus packed changes. Values that no shard changed stay, even if
    changes are measured from 0."""
    pieces = torch.split(packed, list(map(packed_size, starts)))
    results: list[Tensor] = [packed] * len(starts)
    for numbers in _alike(starts):
        start = _flat(starts, numbers)
        wide, base = _wide(start), _base(start)
        if _is_real(start):
            change = torch.cat([pieces[number] for number in numbers]).view(wide.shape)
        else:
            halves = [pieces[number].view(2, -1) for number in numbers]
            change = (torch.cat([high for high, _ in halves]).long() << 32) + torch.cat([low for _, low in halves]).long()
        result = _narrow(torch.where((change == 0) & change.signbit(), wide, base + change), start)
        for number, part in zip(numbers, torch.split(result, [starts[n].numel() for n in numbers]), strict=True):
            results[number] = part.view(starts[number].shape)
    return results


def _alike(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Returns the numbers of tensors, by dtype."""
    groups: dict[torch.dtype, list[int]] = {}
    for number, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(number)
    yield from groups.values()


def _flat(tensors: Sequence[Tensor], numbers: Sequence[int]) -> Tensor:
    return torch.cat([tensors[number].detach().flatten() for number in numbers])


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _wide(tensor: Tensor) -> Tensor:
    """Returns the tensor in float64 or int64 (complex numbers as pairs), so that differences can be
    summed."""
    if tensor.is_complex():
        return torch.view_as_real(tensor).double()
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def _narrow(wide: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(wide).to(like.dtype) if like.is_complex() else wide.to(like.dtype)


def _base(start: Tensor) -> Tensor:
    """Returns the values from which changes are measured: ``start``, but 0 where that is NaN, or so
    large that a difference from it would lose precision (the largest float, for example, as the
    initial value of a minimum)."""
    wide = _wide(start)
    if not wide.is_floating_point():
        return wide
    # false for NaN too
    return torch.where(wide.abs() < _LARGEST_BASE, wide, torch.zeros_like(wide))


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """Returns the change, with -0.0 where there is none (and nowhere else): adding that changes
    nothing, not even a sign."""
    after, start, base = _wide(after), _wide(before), _base(before)
    # add(0): measured from 0, as if the start was NaN, a value that became -0.0 would be "no
    # change".
    return torch.where((after == base) & (start == base), torch.full_like(after, -0.0), (after - base).add(0))
