"""The statistics of many normalization layers as one buffer.

A network has dozens of these layers, each with three buffers of a few numbers. PyTorch needs some
microseconds to look at one of them, but hardly more for all together. So they are read, compared
and written side by side, as integers of one width, which are called words here: the narrowest dtype
among them has that width, and each of their values is one word or several::

    members   count of layer 0 | count of layer 1 | mean of layer 0 | variance of layer 0 | mean ...
    words     [- - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - ]  int32
    values    [int64, 2 words each - - - - - - - -][float32 - - - - - - - - - - - - - - - -]

Every one is written by itself, where it is: nothing in the model shows that they are joined."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lockstep._base.versions import version
from lockstep._sync.changes import INTEGERS
from lockstep._sync.copies import copy_all
from lockstep._sync.slots import Slot, has_value

_form_of: Callable[[Tensor], tuple[torch.Size, torch.dtype]] = operator.attrgetter("shape", "dtype")
_trains: Callable[[torch.nn.Module], bool] = operator.attrgetter("training")
_dtype_of: Callable[[Tensor], torch.dtype] = operator.attrgetter("dtype")
_size_of: Callable[[Tensor], int] = operator.attrgetter("nbytes")
_address_of = Tensor.data_ptr


def can_join(tensor: Tensor) -> bool:
    """Returns whether ``Joined`` takes this buffer."""
    is_dense = type(tensor) is Tensor and tensor.layout == torch.strided
    return is_dense and tensor.ndim <= 1 and not tensor.is_complex() and not tensor.is_quantized


class Joined:
    """Statistics of one device. Has the methods of a ``Slot``, with a value for each dtype.

    Args:
        members: the buffers, all of which ``can_join`` accepts.
        device: where they are combined. A script may have moved some of them to another one.
    """

    def __init__(self, members: Sequence[Slot], device: torch.device) -> None:
        # The widest first, so that those of each dtype begin at a multiple of their size.
        self._members = sorted(members, key=lambda slot: (-slot.tensor.itemsize, str(slot.tensor.dtype)))
        self._places = [(slot.module._buffers, slot.name) for slot in self._members]
        tensors = self._tensors()
        self._forms = list(map(_form_of, tensors))
        self._dims, self._dtypes = list(map(Tensor.dim, tensors)), list(map(_dtype_of, tensors))
        self._modules = list(dict.fromkeys(slot.module for slot in members))
        self._word = INTEGERS[min(tensor.itemsize for tensor in tensors)]
        self._lengths = [tensor.numel() * tensor.itemsize // self._word.itemsize for tensor in tensors]
        """The number of words of each member."""
        self._known: tuple[list[Tensor], list[int], list[int]] = ([], [], [])
        """The tensors of which ``_words`` are views, their addresses and bytes; empty: of none. The
        views keep that memory alive, so nothing else can have the same addresses."""
        self._words: list[Tensor] = []
        """The words of the tensors that were last read: views of them if they are known, otherwise
        perhaps copies, which are not to be written to."""
        self._are_own = False
        """Whether all of them may be written to, as ``Slot.is_own``."""
        self._is_apart = any(tensor.device != device for tensor in tensors)
        self._start = torch.empty(sum(self._lengths), dtype=self._word, device=device)
        self._start_words = list(torch.split(self._start, self._lengths))
        self.starts = self._by_dtype(self._start)
        """The values of each dtype, side by side, when the phase began."""
        self._scratch = torch.empty_like(self._start) if device.type == "cpu" else None
        """What is read for a moment. A GPU may still compute with it when the next is read, in
        another stream, so there each reading gets new memory."""
        self._scratch_values = [] if self._scratch is None else self._by_dtype(self._scratch)
        self._start_parts = self._split(self._start)
        for slot, part in zip(self._members, self._start_parts, strict=True):
            slot.start = part
        self.restart()

    def read(self) -> Tensor:
        """Returns the words of all values, in new memory.

        Raises:
            ModelError: the shard changed the shape or dtype of one of them.
        """
        return self._flat(self._tensors())

    def take(self) -> list[Tensor]:
        """Returns the values of each dtype, which stay until the next call of any method, and puts
        back the start values. Raises what ``read`` raises."""
        tensors = self._tensors()
        if not self._are_unchanged(tensors):
            self._known = ([], [], [])
        words = self._flat(tensors, self._scratch)
        self._write(are_known=bool(self._known[0]))
        return self._by_dtype(words) if self._scratch is None else self._scratch_values

    @property
    def touched(self) -> bool:
        tensors = self._tensors()
        return (
            not all(map(operator.is_, tensors, self._marked_tensors))
            or list(map(version, tensors)) != self._marked_versions
            or not self._have_forms(tensors)
            or self._has_other_values()
        )

    def restart(self) -> list[tuple[Tensor, Tensor]]:
        """Makes the current values the start values."""
        self._flat(self._mark(), self._start)
        return []

    def mark(self) -> None:
        """Does nothing: what a shard has changed counts as changed until the next ``restart``."""

    def restore(self) -> list[tuple[Tensor, Tensor]]:
        """Gives the buffers their start values."""
        self._write(are_known=self._are_known(self._tensors()))
        return []

    def put(self, *values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Gives the buffers these values, which become the start values."""
        for start, value in zip(self.starts, values, strict=True):
            start.copy_(value)
        self._write(are_known=self._are_known(self._tensors()))
        self._mark()
        return []

    def put_back(self, words: Tensor) -> list[tuple[Tensor, Tensor]]:
        tensors = self._tensors()
        # A value of another form stays, which the end of the shard refuses.
        have_forms = self._are_known(tensors) or self._have_forms(tensors)
        if words.is_cpu and have_forms and torch.equal(torch.cat(self._words, out=self._scratch), words):
            return []
        self._copy([pair for slot, part in self._to_write(self._split(words)) for pair in slot.put_back(part)])
        return []

    @property
    def are_unchanged(self) -> bool:
        """Whether all buffers are the same tensors as when they were last read, in the same memory
        and of the same form."""
        return self._are_unchanged(self._tensors())

    def _are_unchanged(self, tensors: list[Tensor]) -> bool:
        # Of at most one dimension: so these and the number of bytes tell the shape.
        return (
            self._are_known(tensors)
            and list(map(Tensor.dim, tensors)) == self._dims
            and list(map(_dtype_of, tensors)) == self._dtypes
            and all(map(Tensor.is_contiguous, tensors))
        )

    def _are_known(self, tensors: list[Tensor]) -> bool:
        """Returns whether these are the tensors that were last read, in the same memory. A form
        that was changed where it is goes unnoticed: to ask for all forms takes as long as the rest
        of a reading, so it is done where a shard ends and a phase begins."""
        known, addresses, sizes = self._known
        return (
            bool(known)
            and all(map(operator.is_, tensors, known))
            and list(map(_address_of, tensors)) == addresses
            and list(map(_size_of, tensors)) == sizes
        )

    def _tensors(self) -> list[Tensor]:
        return [buffers[name] for buffers, name in self._places]  # type: ignore[misc]  # None: see Slot.tensor

    def _flat(self, tensors: list[Tensor], out: Tensor | None = None) -> Tensor:
        """Returns the words of tensors side by side, and sets ``_words``. Raises what ``read``
        raises."""
        if not self._are_known(tensors):
            self._words = self._look(tensors)
        return torch.cat(self._words) if out is None else torch.cat(self._words, out=out)

    def _look(self, tensors: list[Tensor]) -> list[Tensor]:
        """Returns the words of each of these tensors, and sets ``_known``. Raises what ``read``
        raises."""
        if list(map(_form_of, tensors)) != self._forms:
            for slot in self._members:
                slot.read()
        self._known = ([], [], [])
        if self._is_apart:
            return [self._words_of(tensor.to(self._start.device)) for tensor in tensors]
        words = list(map(self._words_of, tensors))
        if all(can_join(tensor) and tensor.is_contiguous() for tensor in tensors):
            self._known = tensors, list(map(_address_of, tensors)), list(map(_size_of, tensors))
            self._are_own = all(slot.is_own for slot in self._members)
        return words

    def _words_of(self, tensor: Tensor) -> Tensor:
        # Through ``.data``: no backward pass needs what is written so, see ``Slot``. A single
        # element is contiguous whatever its stride, but a view of another dtype needs 1.
        return tensor.data.contiguous().as_strided((tensor.numel(),), (1,)).view(self._word)

    def _write(self, *, are_known: bool) -> None:
        """Gives the buffers their start values."""
        if are_known and self._are_own and all(map(_trains, self._modules)):
            torch._foreach_copy_(self._words, self._start_words)
        else:
            self._copy([(slot.writable(part), part) for slot, part in self._to_write(self._start_parts)])

    def _mark(self) -> list[Tensor]:
        tensors = self._marked_tensors = self._tensors()
        self._marked_versions = list(map(version, tensors))
        return tensors

    def _copy(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        if self._is_apart:
            for target, source in pairs:
                target.copy_(source)
        else:
            copy_all(pairs)

    def _have_forms(self, tensors: list[Tensor]) -> bool:
        """Returns whether these tensors still have their forms. If so, ``_words`` are theirs."""
        if not self._are_unchanged(tensors):
            if list(map(_form_of, tensors)) != self._forms:
                return False
            self._words = self._look(tensors)
        return True

    def _has_other_values(self) -> bool:
        """Returns whether ``_words`` are known to have other values than the start. Does not wait
        for a GPU. By values, as ``Slot`` compares: a NaN is another one."""
        if self._scratch is None:
            return False
        torch.cat(self._words, out=self._scratch)
        return not all(map(torch.equal, self._scratch_values, self.starts))

    def _to_write(self, parts: Sequence[Tensor]) -> Iterator[tuple[Slot, Tensor]]:
        """Returns the members that may have other values than these, and the values."""
        for slot, tensor, marked, part in zip(self._members, self._tensors(), self._marked_tensors, parts, strict=True):
            there = part.to(tensor.device) if self._is_apart else part
            # A layer that trains has nearly always written its own: they are not compared.
            if slot.module.training or tensor is not marked or not has_value(tensor, there):
                yield slot, there

    def _split(self, words: Tensor) -> list[Tensor]:
        """Returns the values of each member."""
        parts = torch.split(words, self._lengths)
        return [part.view(dtype).view(shape) for part, (shape, dtype) in zip(parts, self._forms, strict=True)]

    def _by_dtype(self, words: Tensor) -> list[Tensor]:
        """Returns the values of each dtype, side by side."""
        lengths: dict[torch.dtype, int] = {}
        for (_, dtype), length in zip(self._forms, self._lengths, strict=True):
            lengths[dtype] = lengths.get(dtype, 0) + length
        return [part.view(dtype) for part, dtype in zip(torch.split(words, list(lengths.values())), lengths, strict=True)]
