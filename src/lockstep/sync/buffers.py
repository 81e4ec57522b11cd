"""Buffers (BatchNorm statistics and the like) of a step whose shards all begin with the same ones.

Each shard's forward pass may change them. Its changes are noted and undone, so that the next shard starts from the same
values, and at the end of the step they are combined: for a floating buffer, start + Σ fraction_i * (shard_i - start), the
weighted mean over shards; an integer buffer becomes that of the lowest shard. A buffer that no shard changed is not
touched (averaging a constant with itself can make it drift).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from lockstep.errors import ModelError


def version(tensor: Tensor) -> int:
    """How often a tensor was changed in place. (PyTorch has no public name for it.)"""
    count: int = tensor._version
    return count


_MOST_LOOKED_AT = 65536
_LARGEST_BASE = 1e15
"""Differences are taken in float64: from here on they would have fewer digits than a float32."""


class _Slot:
    """One buffer: where it lives, what it was when the step began, and what the shards did to it."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.name = name
        self.start = self.tensor.detach().clone()
        self.change: Tensor | None = None
        self.mark()

    @property
    def tensor(self) -> Tensor:
        found = getattr(self.module, self.name)
        assert isinstance(found, Tensor)
        return found

    def mark(self) -> None:
        tensor = self.tensor
        self._seen = tensor
        self._seen_version = version(tensor)

    @property
    def touched(self) -> bool:
        tensor = self.tensor
        if tensor is not self._seen or version(tensor) != self._seen_version:
            return True
        # What is written through ``.data``, or by native code, is not counted. To look costs little here; a GPU would wait.
        looked_at = tensor.device.type == "cpu" and tensor.numel() <= _MOST_LOOKED_AT
        return looked_at and not torch.equal(tensor.detach(), self.start)

    def restart(self) -> None:
        """What the buffer is now, is what the step begins with."""
        tensor = self.tensor.detach()
        if tensor.shape == self.start.shape and tensor.dtype == self.start.dtype:
            self.start.copy_(tensor)
        else:
            self.start = tensor.clone()
        self.mark()

    def note(self, fraction: float, *, is_lowest_shard: bool) -> None:
        """Add a shard's change to the sum. Integers count for the lowest shard only."""
        change = self.weighted(fraction, is_lowest_shard=is_lowest_shard)
        self.change = change if self.change is None else self.change.add_(change)

    def weighted(self, fraction: float, *, is_lowest_shard: bool) -> Tensor:
        """A shard's change, as it is to be added up.

        Raises:
            ModelError: the shard gave the buffer another shape or dtype.
        """
        tensor = self.tensor
        if tensor.shape != self.start.shape or tensor.dtype != self.start.dtype:
            raise ModelError(
                f"the buffer {self.name!r} of {type(self.module).__name__} became {tuple(tensor.shape)}, {tensor.dtype} in a "
                f"forward pass, and was {tuple(self.start.shape)}, {self.start.dtype} when the step began: what the shards "
                "make of it cannot be put together. Make it at its largest size before training, or keep it in a plain "
                "attribute if it is only a cache."
            )
        change = _difference(self.tensor, self.start)
        if self.start.is_floating_point() or self.start.is_complex():
            return change.mul_(fraction)
        return change if is_lowest_shard else torch.zeros_like(change)

    def put_as_it_was(self, value: Tensor) -> None:
        """Give the buffer the value that it has had a moment ago. It still counts as changed."""
        tensor = self.tensor
        if tensor.shape == value.shape and not torch.equal(tensor, value):
            (tensor.data if isinstance(self.module, NORMALISATIONS) else tensor).copy_(value)

    def put(self, value: Tensor) -> None:
        tensor = self.tensor
        if tensor.device.type == "cpu" and torch.equal(tensor, value) and tensor is self._seen:
            return  # to write the same would spoil a second backward pass through what was computed from it
        if tensor.shape == value.shape:
            # As PyTorch's normalisations do it: they do not count it as a change, since no backward pass needs the values
            # that are written here. So a second backward pass through one forward pass works as it does without us.
            (tensor.data if isinstance(self.module, NORMALISATIONS) else tensor).copy_(value)
        else:
            setattr(self.module, self.name, value.clone())
        self.mark()


def _wide(tensor: Tensor) -> Tensor:
    """In float64 or int64 (complex numbers as pairs), so that a difference can be added up."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor).double()
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def _base(start: Tensor) -> Tensor:
    """What changes are counted from: 0 where the step begins with no number, or with one so large that a difference from it
    would lose what was written (the largest float, say, for a minimum to come)."""
    wide = _wide(start)
    if not wide.is_floating_point():
        return wide
    return torch.where(wide.abs() < _LARGEST_BASE, wide, torch.zeros_like(wide))  # NaN is not smaller either


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """-0.0 where nothing has changed: adding it changes nothing, not even a sign."""
    after, base = _wide(after), _base(before)
    return torch.where(after == base, torch.full_like(after, -0.0), after - base)


def _narrow(wide: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(wide).to(like.dtype) if like.is_complex() else wide.to(like.dtype)


def _pack(change: Tensor) -> Tensor:
    """As float64, exactly: 64-bit integers go in two halves."""
    if change.dtype == torch.int64:
        return torch.stack([change >> 32, change & 0xFFFFFFFF]).double().flatten()
    return change.flatten()


def _unpack(packed: Tensor, like: Tensor) -> Tensor:
    if like.dtype == torch.int64:
        halves = packed.long().view(2, *like.shape)
        return (halves[0] << 32) + halves[1]
    return packed.view_as(like)


class _Owner:
    """A module with buffers. If one of them changed, all may have."""

    def __init__(self, module: nn.Module, slots: list[_Slot]) -> None:
        self.module = module
        self.slots = slots

    @property
    def changed(self) -> bool:
        # PyTorch's normalisations write their statistics without counting it as a change in place.
        if isinstance(self.module, NORMALISATIONS) and self.module.training:
            return True
        return any(slot.touched for slot in self.slots)


NORMALISATIONS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


class ShardBuffers:
    """All buffers of the models that take part."""

    @property
    def num_owners(self) -> int:
        """Modules that have buffers; below, they are numbered in the order of the models."""
        return len(self._owners)

    def __init__(self) -> None:
        self._owners: list[_Owner] = []
        self._unmade: list[tuple[nn.Module, str]] = []
        """Buffers that are None. One that a forward pass makes, and leaves alone then, is a constant that was made late."""
        self._made_late: list[_Slot] = []

    def attach(self, model: nn.Module) -> None:
        """Take care of a model's buffers from now on."""
        known = {id(slot.tensor) for owner in self._owners for slot in owner.slots}
        for module in model.modules():
            slots = []
            for name, buffer in module.named_buffers(recurse=False):
                if id(buffer) not in known:  # a buffer that two modules share is one buffer
                    known.add(id(buffer))
                    slots.append(_Slot(module, name))
            if slots:
                self._owners.append(_Owner(module, slots))
            self._unmade.extend((module, name) for name, buffer in module._buffers.items() if buffer is None)

    @torch.no_grad()
    def begin_step(self) -> None:
        """Accept what was changed since the last step (by loading a checkpoint, say)."""
        for slot in self._changed_slots():
            slot.restart()

    @torch.no_grad()
    def note(self, fraction: float, *, is_lowest_shard: bool) -> None:
        """A shard has run: note what it changed, and undo it."""
        for slot in self._changed_slots():
            slot.note(fraction, is_lowest_shard=is_lowest_shard)
            slot.put(slot.start)

    def noted(self) -> list[bool]:
        """Which modules' buffers this process's shards have changed, or may have."""
        return [owner.changed or any(slot.change is not None for slot in owner.slots) for owner in self._owners]

    @torch.no_grad()
    def combine(self, which: Iterable[bool], all_reduce: Callable[[Tensor], None] | None) -> None:
        """Give the buffers that some shard changed their new values. Collective, if ``all_reduce`` is given.

        Args:
            which: the same on every rank: the modules whose buffers any shard of any rank has changed.
            all_reduce: sums a flat float64 tensor over the ranks, in place.
        """
        slots = [slot for owner, yes in zip(self._owners, which, strict=True) if yes for slot in owner.slots]
        # By number, and not by name: the order must be the same for GPUs 8 to 11 as for GPUs 0 to 3.
        for device in sorted({slot.start.device for slot in slots}, key=lambda device: device.index or 0):
            here = [slot for slot in slots if slot.start.device == device]
            changes = [torch.zeros_like(_wide(slot.start)) if slot.change is None else slot.change for slot in here]
            if all_reduce is not None:
                packed = [_pack(change) for change in changes]
                flat = torch.cat(packed)
                all_reduce(flat)
                parts = torch.split(flat, [part.numel() for part in packed])
                changes = [_unpack(part, change) for part, change in zip(parts, changes, strict=True)]
            for slot, change in zip(here, changes, strict=True):
                slot.put(_narrow(_base(slot.start) + change, slot.start))
                slot.restart()
                slot.change = None

    @torch.no_grad()
    def changes(self, fraction: float, *, is_lowest_shard: bool) -> dict[int, Tensor]:
        """What a shard has changed, weighted, for each module that changed: flat float64. Nothing is undone."""
        return {
            number: torch.cat([_pack(slot.weighted(fraction, is_lowest_shard=is_lowest_shard)) for slot in owner.slots])
            for number, owner in enumerate(self._owners)
            if owner.changed
        }

    def absent(self, number: int) -> Tensor:
        """What stands for a module's changes where it has none: in the shape of ``changes``."""
        return torch.cat([_pack(torch.full_like(_wide(slot.start), -0.0)) for slot in self._owners[number].slots])

    def device(self, number: int) -> torch.device:
        """Where a module's buffers are."""
        return self._owners[number].slots[0].start.device

    @torch.no_grad()
    def apply(self, changes: Mapping[int, Tensor]) -> None:
        """Give buffers their new values: what they were when the step began, and the changes added up over all shards."""
        for number, change in changes.items():
            slots = self._owners[number].slots
            wide = [_base(slot.start) for slot in slots]
            sizes = [_pack(value).numel() for value in wide]
            for slot, value, part in zip(slots, wide, torch.split(change, sizes), strict=True):
                slot.put(_narrow(value + _unpack(part, value), slot.start))
                slot.restart()

    def touched(self) -> list[str]:
        """The modules, by class, with a buffer that can be seen to differ from what the shard began with."""
        return [type(owner.module).__name__ for owner in self._owners if any(slot.touched for slot in owner.slots)]

    @torch.no_grad()
    def restart_shard(self) -> None:
        """Undo what was changed since: by forward passes after the last shard's backward pass, say."""
        for slot in self._changed_slots():
            slot.put(slot.start)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What is changed inside does not count: a backward pass in which ``checkpoint()`` runs layers again."""
        with torch.no_grad():
            before = [
                (owner, [(slot, slot.tensor.detach().clone(), version(slot.tensor)) for slot in owner.slots])
                for owner in self._owners
                if owner.changed
            ]
        yield
        with torch.no_grad():
            for owner, slots in before:
                counts = [version(slot.tensor) for slot, _, _ in slots]
                if isinstance(owner.module, NORMALISATIONS) or counts != [count for _, _, count in slots]:
                    for slot, value, _ in slots:
                        slot.put_as_it_was(value)

    @torch.no_grad()
    def rewind(self) -> None:
        """Undo what was changed after the last combination, and forget what was noted."""
        self.restart_shard()
        for owner in self._owners:
            for slot in owner.slots:
                slot.change = None

    def _look_at_late_ones(self) -> None:
        for slot in self._made_late:
            if slot.touched:
                self._made_late = []  # said once, and not again when the step is dropped
                raise ModelError(
                    f"buffer {slot.name!r} of {type(slot.module).__name__} was None when the model was prepared, and changes "
                    "during training. Its changes cannot be combined over the shards, so the answer would depend on the "
                    "number of processes: register it with a tensor, or run one forward pass before prepare()."
                )
        made = [(module, name) for module, name in self._unmade if getattr(module, name) is not None]
        if made:
            self._unmade = [one for one in self._unmade if one not in made]
            self._made_late += [_Slot(module, name) for module, name in made]

    def _changed_slots(self) -> list[_Slot]:
        if self._unmade or self._made_late:
            self._look_at_late_ones()
        return [slot for owner in self._owners if owner.changed for slot in owner.slots]
