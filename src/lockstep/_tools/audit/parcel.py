"""What a rank needs to recompute another's shard, serialized: the samples exactly as they are in
memory."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep._data.batches import map_tensors
from lockstep._plan.shards import MicroBatch

_LINE = 64
"""PyTorch's memory alignment in bytes. Kernels may add in a different order where a tensor is
aligned differently."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A shard of one batch."""

    runs: Sequence[tuple[MicroBatch, Any]]
    """The micro-batches of the shard in this step, with their samples."""
    per_shard: Sequence[Any] = ()
    """The shard's values of each ``team.per_shard``, in the order of their creation."""
    device_numbers: Sequence[int | None] = ()
    """The device of each tensor of ``per_shard``, in the order of ``map_tensors``, as an index into
    the process's devices; None: the CPU. (Samples are on the CPU, and are moved when the script
    receives them.)"""


def pack(parcel: Parcel, devices: Sequence[torch.device]) -> bytes:
    """Serialize a parcel.

    Args:
        parcel: without ``device_numbers``.
        devices: of this process.

    Raises:
        Exception: something in it cannot be pickled.
    """
    runs = [(dataclasses.replace(micro, samples=()), map_tensors(_own_storage, data)) for micro, data in parcel.runs]
    numbers: list[int | None] = []

    def sent(tensor: Tensor) -> Tensor:
        on_gpu = tensor.device.type != "cpu"
        numbers.append(list(devices).index(tensor.device) if on_gpu else None)
        return _own_storage(tensor)

    values = map_tensors(sent, list(parcel.per_shard))
    return pickle.dumps(Parcel(runs=runs, per_shard=values, device_numbers=numbers), pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes, devices: Sequence[torch.device]) -> Parcel:
    """The parcel that ``pack`` serialized, perhaps on another rank. Tensors of ``per_shard`` that
    were on a GPU are put on the one of this process's ``devices`` with the same number."""
    parcel: Parcel = pickle.loads(data)
    numbers = iter(parcel.device_numbers)

    def received(tensor: Tensor) -> Tensor:
        number = next(numbers)
        return tensor if number is None else tensor.to(devices[number])

    return dataclasses.replace(parcel, per_shard=map_tensors(received, parcel.per_shard))


def _own_storage(tensor: Tensor) -> Tensor:
    """A tensor without the rest of its storage, which pickle would include: a batch may be a view
    of the whole dataset. Strides and memory alignment are preserved."""
    tensor = tensor.detach().cpu() if tensor.device.type != "cpu" else tensor
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0 or span > 2 * tensor.numel():  # a column of a large table, say
        return tensor.clone()
    if tensor.untyped_storage().nbytes() <= span * tensor.itemsize:
        return tensor
    shift = tensor.storage_offset() % max(1, _LINE // tensor.itemsize)
    whole = tensor.detach().as_strided((shift + span,), (1,), tensor.storage_offset() - shift).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), shift)
