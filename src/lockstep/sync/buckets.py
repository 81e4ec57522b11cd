"""Buckets: gradients side by side in flat memory, a bucket at a time on its way while the backward pass still runs.

What is added up is every single element, so where one bucket ends and the next begins cannot change a bit. Alignment can
(a norm or a matrix product over misaligned memory may take another path), so every gradient begins at a multiple of 64
bytes, whatever the number of processes. After the gradients a bucket holds a count for each of them: of the shards that
had one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

ABSENT = -0.0
"""What stands for the gradient of a shard that has none: x + (-0.0) is x to the bit for every x, also for -0.0 (IEEE 754),
so that adding it is the same as leaving it out. (+0.0 would turn -0.0 into +0.0.)"""

_ALIGNED = 16  # elements: 64 bytes of float32
_FIRST_BYTES = 1 << 20  # a small first bucket is soon full, so that sending begins early
_MOST_BYTES = 8 << 20


def summed_dtype(parameter: Tensor) -> torch.dtype:
    """What a parameter's gradients are weighted and summed in: float32 at least."""
    if parameter.is_complex():
        return torch.float64 if parameter.dtype == torch.complex128 else torch.float32
    return torch.float32 if parameter.dtype in (torch.float16, torch.bfloat16) else parameter.dtype


class Flat:
    """The memory of one node of the tree, for one bucket."""

    __slots__ = ("counts", "data", "views")

    def __init__(self, bucket: Bucket) -> None:
        self.data = torch.empty(bucket.length, dtype=bucket.dtype, device=bucket.device)
        """All of it: shape ``(bucket.length,)``."""
        self.views = [bucket.view(self.data, place) for place in range(len(bucket.parameters))]
        """A gradient for each parameter, in its shape and memory order."""
        self.counts = self.data[bucket.length - len(bucket.parameters) :]
        """How many shards had a gradient, for each parameter."""
        self.data.fill_(ABSENT)  # the gaps too: nothing unknown is ever sent


class Bucket:
    """Some parameters of one dtype on one device, and the memory for their gradients."""

    def __init__(self, parameters: Sequence[Parameter], dtype: torch.dtype, device: torch.device) -> None:
        self.parameters = parameters
        self.dtype = dtype
        self.device = device
        self._starts = []
        end = 0
        for parameter in parameters:
            self._starts.append(end)
            numbers = parameter.numel() * (2 if parameter.is_complex() else 1)
            end += -(-numbers // _ALIGNED) * _ALIGNED
        self.length = end + len(parameters)
        self._free: list[Flat] = []
        self._lent: list[tuple[Flat, list[weakref.ref[Tensor]]]] = []

    def view(self, data: Tensor, place: int) -> Tensor:
        """A parameter's part of flat memory, in the parameter's own memory order (channels_last, say)."""
        parameter, start = self.parameters[place], self._starts[place]
        if parameter.is_complex():
            pairs = data[start : start + 2 * parameter.numel()].view(-1, 2)
            return torch.view_as_complex(pairs).as_strided(parameter.size(), _dense_strides(parameter), 0)
        return data.as_strided(parameter.size(), _dense_strides(parameter), start)

    def take(self) -> Flat:
        """Memory for one node: used before if there is any (new memory is slow to touch)."""
        if not self._free:
            self._collect()
        return self._free.pop() if self._free else Flat(self)

    def give_back(self, flat: Flat) -> None:
        """A node's memory is not needed any more."""
        self._free.append(flat)

    def lend(self, flat: Flat, places: Iterable[int]) -> list[Tensor]:
        """New views of some gradients, for the user. Their memory is used again when the last of them is gone."""
        views = [self.view(flat.data, place) for place in places]
        self._lent.append((flat, [weakref.ref(view) for view in views]))
        return views

    def _collect(self) -> None:
        still_lent = []
        for flat, views in self._lent:
            if any(view() is not None for view in views):
                still_lent.append((flat, views))
            else:
                self._free.append(flat)
        self._lent = still_lent


def _dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """The parameter's own strides if it fills its memory, else those of a contiguous tensor."""
    strides = parameter.stride()
    expected = 1
    for stride, size in sorted(zip(strides, parameter.size(), strict=True)):
        if size != 1 and stride != expected:
            return tuple(torch.empty(parameter.size(), device="meta").stride())
        expected *= size
    return strides


def make_buckets(parameters: Sequence[Parameter]) -> list[Bucket]:
    """Buckets for parameters given in the order in which the model has them: the backward pass reaches the last first."""
    buckets: list[Bucket] = []
    open_ones: dict[tuple[torch.device, torch.dtype], list[Parameter]] = {}
    sizes: dict[tuple[torch.device, torch.dtype], int] = {}

    def close(kind: tuple[torch.device, torch.dtype]) -> None:
        device, dtype = kind
        buckets.append(Bucket(open_ones.pop(kind), dtype, device))
        del sizes[kind]

    for parameter in reversed(parameters):
        kind = (parameter.device, summed_dtype(parameter))
        num_bytes = parameter.numel() * kind[1].itemsize
        if kind in sizes and sizes[kind] + num_bytes > (_MOST_BYTES if buckets else _FIRST_BYTES):
            close(kind)
        open_ones.setdefault(kind, []).append(parameter)
        sizes[kind] = sizes.get(kind, 0) + num_bytes
    for kind in list(open_ones):
        close(kind)
    return buckets
