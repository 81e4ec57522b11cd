"""Gradients of parameters of which each rank owns some rows, as ``fully_shard`` assigns them
(``rows_of``).

A *leaf* contains the gradients of one shard of the data, by owner: row r is what rank r owns of
each of them, side by side, and is sent to it unchanged."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep._sync.buckets import summed_dtype
from lockstep._sync.gradients import ABSENT
from lockstep._world.comm.dtensors import rows_of, to_local

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
        self._slices = [torch.empty_like(to_local(parameter.detach()), device="meta") for parameter in parameters]
        """The shapes and dtypes of this rank's slices of the parameters, without memory."""
        self._device = parameters[0].device
        self._world_size = world_size
        self._starts: list[int] = []
        self._numbers: list[int] = []
        """The number of numbers in the gradient of each parameter."""
        self._widths: list[int] = []
        """The numbers that rank 0 owns of each parameter; no rank owns more."""
        end = 0
        for parameter in parameters:
            numbers = parameter.numel() * (2 if parameter.is_complex() else 1)
            num_rows = len(parameter)
            width = len(rows_of(num_rows, 0, world_size)) * (numbers // num_rows) if numbers else 0
            self._starts.append(end)
            self._numbers.append(numbers)
            self._widths.append(width)
            end += -(-width // _ALIGNED) * _ALIGNED
        self.width = end
        """The length of a row."""

    def new_leaf(self) -> Tensor:
        """Returns memory for a leaf: shape ``(world_size, width)``, not filled (``complete``)."""
        return torch.empty((self._world_size, self.width), dtype=self._dtype, device=self._device)

    def complete(self, leaf: Tensor, filled: Container[int] = ()) -> Tensor:
        """Marks as absent what was not put into a new leaf; returns it. (Filling it beforehand
        would write all of it twice.)

        Args:
            filled: the slots into which a gradient was put.
        """
        ends = [*self._starts[1:], self.width]
        for slot, (start, width, end) in enumerate(zip(self._starts, self._widths, ends, strict=True)):
            if slot not in filled:
                leaf[:, start:end] = ABSENT
                continue
            if start + width < end:
                leaf[:, start + width : end] = ABSENT
            num_full, rest = divmod(self._numbers[slot], width) if width else (self._world_size, 0)
            if num_full < self._world_size:
                leaf[num_full, start + rest : start + width] = ABSENT
                leaf[num_full + 1 :, start : start + width] = ABSENT
        return leaf

    def put(self, leaf: Tensor, slot: int, gradient: Tensor, factor: float | Tensor, *, adds: bool) -> None:
        """Multiplies a whole gradient by ``factor`` and puts its slices into a leaf, or adds them
        to it. If ``factor`` is a tensor, gradients of weight 0 are ABSENT, but count as
        gradients."""
        start, width = self._starts[slot], self._widths[slot]
        if not width:
            return
        numbers = (torch.view_as_real(gradient) if gradient.is_complex() else gradient).reshape(-1)
        if numbers.dtype != leaf.dtype:  # 16-bit gradients are weighted in float32
            numbers = numbers.to(leaf.dtype)
        if isinstance(factor, Tensor):
            factor = factor.to(leaf.device, leaf.dtype)
        num_full, rest = divmod(numbers.numel(), width)
        full = num_full * width
        pairs = [(leaf[:num_full, start : start + width], numbers[:full].view(num_full, width))]
        if rest:
            pairs.append((leaf[num_full, start : start + rest], numbers[full:]))
        for target, source in pairs:
            product = torch.mul(source, factor, out=None if adds else target)
            if isinstance(factor, Tensor):
                product.masked_fill_(factor == 0, ABSENT)  # and not 0 x NaN
            if adds:
                target.add_(product)

    def own(self, row: Tensor, slots: Iterable[int]) -> list[Tensor]:
        """Returns views of this rank's slices of some gradients in its row, in the shapes of its
        slices of the parameters."""
        views = []
        for slot in slots:
            own, start = self._slices[slot], self._starts[slot]
            if own.is_complex():
                numbers = torch.view_as_complex(row[start : start + 2 * own.numel()].view(-1, 2))
            else:
                numbers = row[start : start + own.numel()]
            views.append(numbers.view(own.shape))
        return views


def make_slices(parameters: Iterable[Parameter], world_size: int) -> list[Slices]:
    """Returns the parameters of a unit, by dtype."""
    by_dtype: dict[torch.dtype, list[Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(summed_dtype(parameter), []).append(parameter)
    return [Slices(some, dtype, world_size) for dtype, some in by_dtype.items()]
