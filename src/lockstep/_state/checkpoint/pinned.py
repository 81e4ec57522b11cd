"""Pinned memory for the copies of a device's tensors, in few blocks.

PyTorch rounds each allocation of pinned memory up to a power of two, and keeps it when it is freed:
154 MB for an embedding take 256 MB. So the copies share blocks whose sizes are powers of two, large
tensors first, smaller ones in what is left::

    1.5 GB of tensors      | 1 GB: embedding, its moments, ...   | 512 MB: the other tensors   |
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_ALIGNMENT = 64
"""Of each tensor, in bytes: above every element's size, and no two share a cache line."""
_LEAST_BYTES = 1 << 20
"""What is smaller goes into one block."""

Forms = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shapes and dtypes of tensors, by name."""
Block = tuple[int, dict[str, int]]
"""The size of a block, and the first byte of each tensor in it."""


class Pinned:
    """The pinned memory for copies of these tensors."""

    def __init__(self, forms: Forms) -> None:
        self.forms = dict(forms)
        self.views: dict[str, Tensor] = {}
        """The memory of each tensor, which is contiguous."""
        num_bytes = {name: shape.numel() * dtype.itemsize for name, (shape, dtype) in forms.items()}
        for size, starts in pack(num_bytes):
            # "cpu" also where the script has called torch.set_default_device().
            block = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
            for name, start in starts.items():
                shape, dtype = forms[name]
                self.views[name] = block[start : start + num_bytes[name]].view(dtype).view(shape)


def pack(num_bytes: Mapping[str, int]) -> list[Block]:
    """Returns blocks of memory for tensors of these sizes. Pure.

    Each block's size is a power of two; together they are less than twice as large as the tensors
    (and 1 MB), and little larger if no tensor is a large part of all."""
    aligned = {name: -(-size // _ALIGNMENT) * _ALIGNMENT for name, size in num_bytes.items()}
    left = sorted(aligned, key=lambda name: (-aligned[name], name))
    blocks: list[Block] = []
    found: list[tuple[int, list[Block]]] = []
    while left:
        total = sum(aligned[name] for name in left)
        whole = _power_of_two(total)
        # All that is left in one block, or in several: whatever needs less.
        found.append((sum(size for size, _ in blocks) + whole, [*blocks, _filled(left, aligned, whole)[0]]))
        size = whole if total <= _LEAST_BYTES else max(whole // 2, _power_of_two(aligned[left[0]]))
        block, left = _filled(left, aligned, size)
        blocks.append(block)
    found.append((sum(size for size, _ in blocks), blocks))
    return min(found, key=lambda one: one[0])[1]


def _filled(names: list[str], aligned: Mapping[str, int], size: int) -> tuple[Block, list[str]]:
    """Returns a block of this size with the first of the tensors that fit, and the other ones."""
    starts: dict[str, int] = {}
    rest: list[str] = []
    end = 0
    for name in names:
        if end + aligned[name] <= size:
            starts[name] = end
            end += aligned[name]
        else:
            rest.append(name)
    return (size, starts), rest


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
