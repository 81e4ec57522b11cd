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
_address_of = Tensor.data_ptr
_JOINS: dict[frozenset[int], Callable[..., Tensor]] = {frozenset({0}): torch.stack, frozenset({1}): torch.cat}
"""How to put tensors side by side that all have the same number of dimensions. (``hstack`` takes
others, but first changes every tensor.)"""


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
        self._modules = list(dict.fromkeys(slot.module for slot in members))
        self._join = _JOINS.get(frozenset(tensor.ndim for tensor in tensors), torch.hstack)
        """Puts the tensors side by side."""
        self._targets: list[Tensor] = []
        """What to write to, to give all buffers a value."""
        self._known: tuple[list[Tensor], list[int], list[tuple[torch.Size, torch.dtype]]] = ([], [], [])
        """The tensors to which ``_targets`` belong, their addresses and forms; empty: none
        belong."""
        self._is_apart = any(tensor.device != device for tensor in tensors)
        self.start = torch.empty(sum(map(torch.numel, tensors)), dtype=tensors[0].dtype, device=device)
        self._compared = torch.empty_like(self.start) if device.type == "cpu" else None
        """What is read to be compared, and needed no longer. On a GPU nothing is compared."""
        self._start_parts = self._split(self.start)
        for slot, part in zip(members, self._start_parts, strict=True):
            slot.start = part
        self.restart()

    def read(self) -> Tensor:
        """Returns the values side by side, in new memory.

        Raises:
            ModelError: the shard changed the shape or dtype of one of them.
        """
        return self._read(self._tensors())

    def take(self) -> Tensor:
        """Returns what ``read`` returns, and puts back the start values. Raises what it raises."""
        tensors = self._tensors()
        are_known = self._are_known(tensors)
        value = self._flat(tensors) if are_known else self._read(tensors)
        self._write(are_known=are_known)
        return value

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
        self._flat(self._mark(), self.start)
        return []

    def mark(self) -> None:
        """Does nothing: what a shard has changed counts as changed until the next ``restart``."""

    def put(self, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Gives the buffers their start values, or others, which become the start values."""
        is_new = value is not self.start
        if is_new:
            self.start.copy_(value)
        self._write(are_known=self.are_known)
        if is_new:
            self._mark()
        return []

    def put_back(self, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        # Another form is not looked for, which the end of the shard refuses.
        if value.device.type == "cpu" and torch.equal(self._flat(self._tensors(), self._compared), value):
            return []
        return self._copy([pair for slot, part in self._to_write(self._split(value)) for pair in slot.put_back(part)])

    @property
    def are_known(self) -> bool:
        """Whether all buffers are the same tensors in the same memory as when they were last
        written together, so that neither their form nor their device has changed."""
        return self._are_known(self._tensors())

    def _are_known(self, tensors: list[Tensor]) -> bool:
        known, addresses, forms = self._known
        return (
            bool(known)
            and all(map(operator.is_, tensors, known))
            and list(map(_address_of, tensors)) == addresses
            and list(map(_form_of, tensors)) == forms == self._forms
        )

    def _read(self, tensors: list[Tensor]) -> Tensor:
        if list(map(_form_of, tensors)) != self._forms:
            for slot in self._members:
                slot.read()
        return self._flat(tensors)

    def _write(self, *, are_known: bool) -> None:
        """Gives the buffers their start values."""
        all_train = all(module.training for module in self._modules)
        if are_known and all_train:
            torch._foreach_copy_(self._targets, self._start_parts)
            return
        pairs = [(slot.writable(part), part) for slot, part in self._to_write(self._start_parts)]
        self._copy(pairs)
        self._known = ([], [], [])
        if all_train and not self._is_apart:
            tensors = self._tensors()
            self._known = tensors, list(map(_address_of, tensors)), list(map(_form_of, tensors))
            self._targets = [target for target, _ in pairs]

    def _mark(self) -> list[Tensor]:
        tensors = self._marked_tensors = self._tensors()
        self._marked_versions = list(map(version, tensors))
        return tensors

    def _tensors(self) -> list[Tensor]:
        return [buffers[name] for buffers, name in self._places]  # type: ignore[misc]  # None: see Slot.tensor

    def _flat(self, tensors: list[Tensor], out: Tensor | None = None) -> Tensor:
        """Returns the tensors side by side."""
        if self._is_apart:
            tensors = [tensor.to(self.start.device) for tensor in tensors]
        # Not without ``out``: autocast would choose a dtype.
        out = torch.empty(0, dtype=self.start.dtype, device=self.start.device) if out is None else out
        return self._join(tensors, out=out)

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
        return value.device.type == "cpu" and not torch.equal(self._flat(tensors, self._compared), value)

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
