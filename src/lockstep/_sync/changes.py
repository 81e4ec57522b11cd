"""The arithmetic of buffers' changes. Buffers of one dtype are computed on as one: a device starts
a kernel for all of them, where one for each buffer would cost more than the passes of the model.
Pure.

All tensors of a call are on one device. A packed change is flat float64, exactly: integers are
split into two halves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LARGEST_BASE = 1e15
"""Differences are taken in float64: from this magnitude on they would have fewer digits than a
float32."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer dtype of each width in bytes."""


def as_bits(tensor: Tensor) -> Tensor:
    """Returns a floating tensor's bits as integers, whose differences are exact; integers
    themselves."""
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return tensor.view(INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


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


class Starts:
    """The values of some buffers when the phase began: what the changes of all its shards are
    measured from, and added to."""

    def __init__(self, starts: Sequence[Tensor]) -> None:
        self._shapes = [start.shape for start in starts]
        self._sizes = list(map(packed_size, starts))
        alike: dict[torch.dtype, list[int]] = {}
        for number, start in enumerate(starts):
            alike.setdefault(start.dtype, []).append(number)
        self._alike: list[tuple[list[int], list[int], _Reals | _Integers]] = []
        """The numbers of buffers of one dtype, the lengths of their packed changes, and their
        values side by side."""
        for numbers in alike.values():
            flat = _flat(starts, numbers)
            values = _Reals(flat) if _is_real(flat) else _Integers(flat)
            self._alike.append((numbers, [self._sizes[number] for number in numbers], values))

    def pack(self, after: Sequence[Tensor], fraction: float, *, is_lowest_shard: bool) -> Tensor:
        """Returns the changes of a shard times its fraction, packed one after the other; of
        integers the change of the lowest shard, and 0 for others."""
        # One float64 message for all dtypes. Halves of 32 bits are exact in it, and only the lowest
        # shard's are not 0, so their sums are exact too. -0.0 is "no change" of a floating buffer.
        parts = list(after)
        for numbers, sizes, start in self._alike:
            packed = start.pack(_flat(after, numbers), fraction, is_lowest_shard=is_lowest_shard)
            for number, part in zip(numbers, split(packed, sizes), strict=True):
                parts[number] = part
        return _cat(parts)

    def plus(self, packed: Tensor) -> list[Tensor]:
        """Returns the start values plus packed changes. Values that no shard changed stay, even if
        changes are measured from 0."""
        pieces = split(packed, self._sizes)
        results = list(pieces)
        for numbers, _, start in self._alike:
            shapes = [self._shapes[number] for number in numbers]
            total = start.plus(_cat([pieces[number] for number in numbers]))
            for number, shape, part in zip(numbers, shapes, split(total, [shape.numel() for shape in shapes]), strict=True):
                results[number] = part if len(shape) == 1 else part.view(shape)
        return results


class _Reals:
    """Floating or complex values, whose changes are float64."""

    def __init__(self, start: Tensor) -> None:
        self._dtype = start.dtype
        self._start = self._base = _wide(start)
        # Of other devices it is not asked: they would be waited for.
        is_asked = start.is_cpu and not start.is_complex()
        self._are_all_measured = is_asked and bool((self._start.abs() < _LARGEST_BASE).all())
        if self._are_all_measured:
            # 0.0 in place of -0.0, from which 0.0 is no change either.
            self._unsigned_base = self._base + 0.0
            return
        # Measured from 0 where the start is NaN, or so large that a difference from it would lose
        # precision (the largest float, for example, as the initial value of a minimum). From -0.0,
        # since what became -0.0 less 0.0 would be -0.0: "no change".
        self._base = torch.where(self._start.abs() < _LARGEST_BASE, self._start, -0.0)
        self._is_measured = self._start == self._base

    def pack(self, after: Tensor, fraction: float, *, is_lowest_shard: bool) -> Tensor:
        if self._are_all_measured:
            # The same in two operations rather than six: 0.0 times a negative number is -0.0, and
            # turning two signs changes no other bit.
            return torch.sub(self._unsigned_base, after).mul_(-fraction)
        after = _wide(after)
        change = after - self._base
        # -0.0 where there is no change, and nowhere else: adding that changes nothing, not even a
        # sign.
        change.masked_fill_((after == self._base).logical_and_(self._is_measured), -0.0)
        return change.mul_(fraction).flatten()

    def plus(self, packed: Tensor) -> Tensor:
        change = packed.view(self._start.shape)
        total = self._base + change
        if not self._are_all_measured:
            total = torch.where((change == 0) & change.signbit(), self._start, total)
        return torch.view_as_complex(total).to(self._dtype) if self._dtype.is_complex else total.to(self._dtype)


class _Integers:
    """Integers or truth values, whose changes are packed as their two halves of 32 bits."""

    def __init__(self, start: Tensor) -> None:
        self._dtype = start.dtype
        self._start = start.long()
        self._nothing = torch.zeros(2 * start.numel(), dtype=torch.float64, device=start.device)

    def pack(self, after: Tensor, fraction: float, *, is_lowest_shard: bool) -> Tensor:
        return (after.long() - self._start).view(torch.int32).double() if is_lowest_shard else self._nothing.clone()

    def plus(self, packed: Tensor) -> Tensor:
        return (self._start + packed.to(torch.int32).view(torch.int64)).to(self._dtype)


def _flat(tensors: Sequence[Tensor], numbers: Sequence[int]) -> Tensor:
    """Returns tensors side by side, to be read: of one it may be a view or the tensor itself."""
    if len(numbers) == 1 and (only := tensors[numbers[0]]).ndim == 1:
        return only
    return _cat([tensors[number].flatten() for number in numbers])


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


def split(flat: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Returns consecutive parts."""
    return torch.split(flat, list(sizes)) if len(sizes) > 1 else (flat,)


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _wide(tensor: Tensor) -> Tensor:
    """Returns floating values in float64, complex ones as pairs of it."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()
