"""Gradients of parameters of which each rank owns some rows, as ``fully_shard`` deals them out: see ``rows_of``.

A *leaf* holds the gradients of one shard of the data, by owner: row r is what rank r owns of each of them, side by side, and
is sent to it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.sync.buckets import ABSENT, summed_dtype
from lockstep.world.comm.dtensors import rows_of, to_local

_ALIGNED = 16  # elements: 64 bytes of float32


class Slices:
    """Some parameters of one dtype, and where the slices of their gradients are in a leaf.

    Args:
        parameters: DTensors, sharded over all ranks.
        dtype: in which their gradients are summed; of complex ones the parts are.
        world_size: number of ranks.
    """

    def __init__(self, parameters: Sequence[Parameter], dtype: torch.dtype, world_size: int) -> None:
        self.parameters = parameters
        self._dtype = dtype
        self._device = parameters[0].device
        self._world_size = world_size
        self._starts: list[int] = []
        self._widths: list[int] = []
        """For each parameter how many numbers rank 0 owns; none owns more."""
        end = 0
        for parameter in parameters:
            numbers = parameter.numel() * (2 if parameter.is_complex() else 1)
            num_rows = len(parameter)
            width = len(rows_of(num_rows, 0, world_size)) * (numbers // num_rows) if numbers else 0
            self._starts.append(end)
            self._widths.append(width)
            end += -(-width // _ALIGNED) * _ALIGNED
        self.width = end
        """The length of a row."""

    def new_leaf(self) -> Tensor:
        """A leaf in which no parameter has a gradient: shape ``(world_size, width)``."""
        return torch.full((self._world_size, self.width), ABSENT, dtype=self._dtype, device=self._device)

    def put(self, leaf: Tensor, slot: int, gradient: Tensor, factor: float, *, adds: bool) -> None:
        """Multiply a whole gradient by ``factor`` and put its slices into a leaf, or add them."""
        start, width = self._starts[slot], self._widths[slot]
        if not width:
            return
        numbers = (torch.view_as_real(gradient) if gradient.is_complex() else gradient).reshape(-1)
        if numbers.dtype != leaf.dtype:  # 16-bit gradients are weighted in float32
            numbers = numbers.to(leaf.dtype)
        num_full, rest = divmod(numbers.numel(), width)
        full = num_full * width
        pairs = [(leaf[:num_full, start : start + width], numbers[:full].view(num_full, width))]
        if rest:
            pairs.append((leaf[num_full, start : start + rest], numbers[full:]))
        for target, source in pairs:
            if adds:
                target.add_(source * factor)
            else:
                torch.mul(source, factor, out=target)

    def own(self, row: Tensor, slots: Iterable[int]) -> list[Tensor]:
        """Views of this rank's slices of some gradients in its row, in the shapes of its parts of the parameters."""
        views = []
        for slot in slots:
            part = to_local(self.parameters[slot].detach())
            start = self._starts[slot]
            if part.is_complex():
                numbers = torch.view_as_complex(row[start : start + 2 * part.numel()].view(-1, 2))
            else:
                numbers = row[start : start + part.numel()]
            views.append(numbers.view(part.shape))
        return views


def make_slices(parameters: Iterable[Parameter], world_size: int) -> list[Slices]:
    """The parameters of a unit, by dtype."""
    by_dtype: dict[torch.dtype, list[Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(summed_dtype(parameter), []).append(parameter)
    return [Slices(some, dtype, world_size) for dtype, some in by_dtype.items()]
