"""The statistics of many normalization layers as one flat buffer.

A network has dozens of these layers, each with three buffers of a few numbers. PyTorch needs some
microseconds to look at one of them, but hardly more for all of one dtype together, so they are
read, compared and combined side by side::

    members   mean of layer 0 | variance of layer 0 | mean of layer 1 | ...
    start     [- - - - - - - - - - - - - - - - - - - - - - - - - - - - - -]   flat, in that order

Every one is written by itself, where it is: nothing in the model shows that they are joined."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lockstep._base.versions import version
from lockstep._sync.slots import Slot, has_value

_form_of: Callable[[Tensor], tuple[torch.Size, torch.dtype]] = operator.attrgetter("shape", "dtype")


def can_join(tensor: Tensor) -> bool:
    """Returns whether ``Joined`` takes this buffer."""
    is_dense = type(tensor) is Tensor and tensor.layout == torch.strided
    return is_dense and tensor.ndim <= 1 and not tensor.is_complex() and not tensor.is_quantized


class Joined:
    """Statistics of one dtype. Has the methods of a ``Slot``.

    Args:
        members: the buffers, all of which ``can_join`` accepts.
        device: where they are combined. A script may have moved some of them to another one.
    """

    def __init__(self, members: Sequence[Slot], device: torch.device) -> None:
        self._members = members
        self._places = [(slot.module._buffers, slot.name) for slot in members]
        tensors = self._tensors()
        self._forms = list(map(_form_of, tensors))
        self._is_apart = any(tensor.device != device for tensor in tensors)
        self.start = torch.empty(sum(map(torch.numel, tensors)), dtype=tensors[0].dtype, device=device)
        self._start_parts = self._split(self.start)
        for slot, part in zip(members, self._start_parts, strict=True):
            slot.start = part
        self.restart()

    def read(self) -> Tensor:
        """Returns the values side by side, in new memory.

        Raises:
            ModelError: the shard changed the shape or dtype of one of them.
        """
        tensors = self._tensors()
        if list(map(_form_of, tensors)) != self._forms:
            for slot in self._members:
                slot.read()
        return self._flat(tensors)

    @property
    def touched(self) -> bool:
        tensors = self._tensors()
        return (
            not all(map(operator.is_, tensors, self._marked_tensors))
            or list(map(version, tensors)) != self._marked_versions
            or self._differs(tensors, self.start)
        )

    def restart(self) -> list[tuple[Tensor, Tensor]]:
        """Makes the current values the start values."""
        tensors = self._marked_tensors = self._tensors()
        self._marked_versions = list(map(version, tensors))
        self._flat(tensors, self.start)
        return []

    def mark(self) -> None:
        """Does nothing: what a shard has changed counts as changed until the next ``restart``."""

    def put(self, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Gives the buffers their start values, or others, which become the start values."""
        if value is not self.start:
            self.start.copy_(value)
        return self._copy([(slot.writable(part), part) for slot, part in self._to_write(self._start_parts)])

    def put_back(self, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        if value.device.type == "cpu" and not self._differs(self._tensors(), value):
            return []
        return self._copy([pair for slot, part in self._to_write(self._split(value)) for pair in slot.put_back(part)])

    def _tensors(self) -> list[Tensor]:
        return [buffers[name] for buffers, name in self._places]  # type: ignore[misc]  # None: see Slot.tensor

    def _flat(self, tensors: list[Tensor], out: Tensor | None = None) -> Tensor:
        """Returns the tensors side by side."""
        if self._is_apart:
            tensors = [tensor.to(self.start.device) for tensor in tensors]
        # Not without ``out``: autocast would choose a dtype.
        return torch.hstack(tensors, out=torch.empty_like(self.start) if out is None else out)

    def _copy(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        if self._is_apart:
            for target, source in pairs:
                target.copy_(source)
        elif pairs:
            torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
        return []

    def _differs(self, tensors: list[Tensor], value: Tensor) -> bool:
        """Returns whether they are known to have other values than these, or another form. Does not
        wait for a GPU."""
        if list(map(_form_of, tensors)) != self._forms:
            return True
        return value.device.type == "cpu" and not torch.equal(self._flat(tensors), value)

    def _to_write(self, parts: Sequence[Tensor]) -> Iterator[tuple[Slot, Tensor]]:
        """Returns the members that may have other values than these, and the values."""
        for slot, tensor, marked, part in zip(self._members, self._tensors(), self._marked_tensors, parts, strict=True):
            there = part.to(tensor.device) if self._is_apart else part
            # A layer that trains has nearly always written its own: they are not compared.
            if slot.module.training or tensor is not marked or not has_value(tensor, there):
                yield slot, there

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [shape.numel() for shape, _ in self._forms])
        return [part if shape else part.view(()) for part, (shape, _) in zip(parts, self._forms, strict=True)]
