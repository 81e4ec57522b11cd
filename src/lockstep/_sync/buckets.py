"""Buckets: gradients side by side in flat memory, exchanged bucket by bucket during the backward
pass.

Sums are element by element, so bucket boundaries cannot change a bit. Alignment can (a norm or a
matrix product over misaligned memory may take another code path), so every gradient begins at a
multiple of 64 bytes, whatever the number of processes. Behind the gradients a bucket contains a
count for each of them: the number of shards that had one.

::

    | gradient of p0 |gap| gradient of p1 |gap| ... | n0 | n1 | ...      one dtype, one device
    0                16k                  16m        behind the last gap

On a device, padding follows, so that a bucket can be cut into as many equal, aligned slices as
there are ranks: ``sync.ordered`` sends slices of it without a copy, and receives into it.

Parameters are in reverse model order, since the backward pass reaches the last layers first."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep._sync.gradients import ABSENT, is_narrow

_ALIGNED = 16  # elements: 64 bytes of float32
# A smaller first bucket is full sooner, so sending begins early. Small models are one bucket.
_FIRST_BYTES = 4 << 20
_MOST_BYTES = 25 << 20  # the default of DistributedDataParallel
# On a device, an exchange is some launches from Python, whatever its size. A large model has larger
# buckets, and so fewer of them. (Gradients wait for their bucket to be full, so this takes up to
# 75 MiB more.)
_LARGE_MODEL_BYTES, _MOST_BYTES_OF_LARGE = 1 << 30, 100 << 20


def summed_dtype(parameter: Tensor) -> torch.dtype:
    """Returns the dtype in which a parameter's gradients are weighted and summed: float32 at
    least."""
    if parameter.is_complex():
        return torch.float64 if parameter.dtype == torch.complex128 else torch.float32
    return torch.float32 if is_narrow(parameter) else parameter.dtype


class Flat:
    """The memory of one node of the tree, for one bucket."""

    __slots__ = ("counts", "data", "views")

    def __init__(self, bucket: Bucket) -> None:
        self.data = torch.empty(bucket.length, dtype=bucket.dtype, device=bucket.device)
        """The whole memory: shape ``(bucket.length,)``."""
        self.views = [bucket.view(self.data, slot) for slot in range(len(bucket.parameters))]
        """The view of each parameter's gradient, in its shape and memory order."""
        self.counts = self.data[bucket.counts]
        """The number of shards that had a gradient, for each parameter."""
        self.data.fill_(ABSENT)  # the gaps too, so that no uninitialized memory is sent


class Bucket:
    """Some parameters of one dtype on one device, and the memory for their gradients.

    Args:
        parameters: in the order of their slots.
        dtype: of the sums.
        device: of the parameters.
        num_slices: number of equal, aligned slices into which its memory can be cut on a device.
    """

    def __init__(
        self, parameters: Sequence[Parameter], dtype: torch.dtype, device: torch.device, num_slices: int = 1
    ) -> None:
        self.parameters = parameters
        self.dtype = dtype
        self.device = device
        self._slots = []
        end = 0
        for parameter in parameters:
            # A slot has the parameter's own memory order (channels_last, say).
            self._slots.append((parameter.size(), _dense_strides(parameter), end))
            numbers = parameter.numel() * (2 if parameter.is_complex() else 1)
            end += -(-numbers // _ALIGNED) * _ALIGNED
        self.counts = slice(end, end + len(parameters))
        """The place of the counts. (It and the slots depend on the parameters alone, and not on the
        number of ranks.)"""
        unit = 1 if device.type == "cpu" else _ALIGNED * num_slices
        self.length = -(-self.counts.stop // unit) * unit
        self._free: list[Flat] = []
        self._lent: list[tuple[Flat, weakref.ref[Any]]] = []

    def view(self, data: Tensor, slot: int) -> Tensor:
        """Returns a parameter's slot of flat memory."""
        size, strides, start = self._slots[slot]
        if self.parameters[slot].is_complex():
            pairs = data[start : start + 2 * size.numel()].view(-1, 2)
            # counted from the memory's start
            return torch.view_as_complex(pairs).as_strided(size, strides, start // 2)
        return data.as_strided(size, strides, start)

    def take(self) -> Flat:
        """Returns memory for one node, reused if possible (new memory is slow to touch)."""
        if not self._free:
            self._collect()
        return self._free.pop() if self._free else Flat(self)

    def give_back(self, flat: Flat) -> None:
        """Takes back a node's memory for reuse."""
        self._free.append(flat)

    def free(self) -> None:
        """Frees the memory that is not in use. What is lent is freed when nothing refers to it any
        more."""
        self._free, self._lent = [], []

    def lend(self, flat: Flat, slots: Iterable[int]) -> list[Tensor]:
        """Returns new views of some gradients, for the user. Their memory is reused when nothing
        refers to it any more."""
        if not flat.data.is_cpu:  # PyTorch's allocator reuses memory there
            return [self.view(flat.data, slot) for slot in slots]
        # A script may keep ``p.grad.detach()``, or a slice: other tensor objects, all of which keep
        # the underlying array alive. So a weak reference to the array tells when the last is gone.
        array = flat.data.numpy()
        data = torch.from_numpy(array)
        self._lent.append((flat, weakref.ref(array)))
        return [self.view(data, slot) for slot in slots]

    def _collect(self) -> None:
        still_lent = []
        for flat, loan in self._lent:
            if loan() is not None:
                still_lent.append((flat, loan))
            else:
                self._free.append(flat)
        self._lent = still_lent


def _dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """Returns the parameter's strides if it is dense in memory (its clone has the
    same), and otherwise the strides of a contiguous tensor."""
    is_dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    return parameter.stride() if is_dense else torch.empty(parameter.size(), device="meta").stride()


def keep_freed_memory() -> None:
    """Makes the C library keep up to 60 MiB of freed memory instead of returning it to the system
    immediately.

    Gradients are freed as soon as they are in their bucket, and the next ones need as much: without
    this, every step gets new pages from the system (1,400 page faults a step, 4 % of its time, were
    measured with 5 million parameters). glibc adapts its thresholds to the largest mmapped block
    that is freed (mallopt(3), M_MMAP_THRESHOLD)."""
    torch.empty(31 << 20, dtype=torch.uint8)  # never touched, so it costs nothing


def make_buckets(parameters: Sequence[Parameter], num_slices: int = 1) -> list[Bucket]:
    """Buckets for parameters given in model order; the backward pass fills the first bucket first.

    Args:
        parameters: of the models.
        num_slices: as for ``Bucket``.
    """
    most_bytes = _most_bytes(parameters)
    buckets: list[Bucket] = []
    open_buckets: dict[tuple[torch.device, torch.dtype], list[Parameter]] = {}
    sizes: dict[tuple[torch.device, torch.dtype], int] = {}

    def close(kind: tuple[torch.device, torch.dtype]) -> None:
        device, dtype = kind
        buckets.append(Bucket(open_buckets.pop(kind), dtype, device, num_slices))
        del sizes[kind]

    for parameter in reversed(parameters):
        kind = (parameter.device, summed_dtype(parameter))
        num_bytes = _summed_bytes(parameter)
        if kind in sizes and sizes[kind] + num_bytes > (most_bytes[kind[0]] if buckets else _FIRST_BYTES):
            close(kind)
        open_buckets.setdefault(kind, []).append(parameter)
        sizes[kind] = sizes.get(kind, 0) + num_bytes
    for kind in list(open_buckets):
        close(kind)
    return buckets


def _summed_bytes(parameter: Parameter) -> int:
    return parameter.numel() * summed_dtype(parameter).itemsize


def _most_bytes(parameters: Iterable[Parameter]) -> dict[torch.device, int]:
    """Returns the most bytes of a bucket on each device."""
    totals: Counter[torch.device] = Counter()
    for parameter in parameters:
        totals[parameter.device] += _summed_bytes(parameter)
    return {
        device: _MOST_BYTES_OF_LARGE if device.type != "cpu" and total > _LARGE_MODEL_BYTES else _MOST_BYTES
        for device, total in totals.items()
    }
