"""Combining the buffers (BatchNorm statistics and the like) of a phase's shards, which all begin with the same values.

Each shard's forward pass may change them. Its changes are recorded and undone, so that the next shard starts from the same
values, and at the end of the phase they are combined: for a floating buffer, start + Σ fraction_i * (shard_i - start), the
weighted mean over shards; an integer buffer becomes that of the lowest shard. A buffer that no shard changed is left alone
(averaging a constant with itself can make it drift). Those of a phase's only shard become its own, bit for bit.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.base.errors import ModelError
from lockstep.base.stopping import say
from lockstep.sync.buffer_looks import Look, judge, look_at

version: Callable[[Tensor], int] = operator.attrgetter("_version")
"""The number of in-place changes of a tensor. (PyTorch has no public name for it. Read twice a step from each parameter.)"""
_MOST_COMPARED = 65536
"""Elements up to which a buffer is compared with its start value."""
_WATCHED_PHASES = 8
"""Phases in which a module's buffers are looked at, to warn where combining them loses something. Each sends more messages."""
_LARGEST_BASE = 1e15
"""Differences are taken in float64: from this magnitude on they would have fewer digits than a float32."""


class _Slot:
    """One buffer: its module and name, its value when the phase began, and the sum of the shards' changes."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.name = name
        self.is_statistic = isinstance(module, NORMALIZATIONS)
        """Whether it belongs to a normalization layer of PyTorch, which writes it through ``.data``, since no backward pass
        needs its values: so a second backward pass through one forward pass works as it does in a plain script."""
        self.start = self.tensor.detach().clone()
        self.mark()

    @property
    def tensor(self) -> Tensor:
        buffer = getattr(self.module, self.name)
        assert isinstance(buffer, Tensor)
        return buffer

    def mark(self) -> None:
        tensor = self.tensor
        self._marked_tensor = tensor
        self._marked_version = version(tensor)

    @property
    def touched(self) -> bool:
        tensor = self.tensor
        if tensor is not self._marked_tensor or version(tensor) != self._marked_version:
            return True
        # Writes through ``.data`` or by native code are not counted. Comparing is cheap on the CPU; on a GPU it would wait.
        is_compared = tensor.device.type == "cpu" and tensor.numel() <= _MOST_COMPARED
        return is_compared and not torch.equal(tensor.detach(), self.start)

    def restart(self) -> None:
        """Make the current value the start value."""
        tensor = self.tensor.detach()
        if tensor.shape == self.start.shape and tensor.dtype == self.start.dtype:
            self.start.copy_(tensor)
        else:
            self.start = tensor.clone()
        self.mark()

    def weighted(self, fraction: float, *, is_lowest_shard: bool, as_bits: bool = False) -> Tensor:
        """A shard's change times its fraction; for integers, and as bits, the change of the lowest shard and 0 for others.

        Raises:
            ModelError: the shard changed the buffer's shape or dtype.
        """
        tensor = self.tensor
        if tensor.shape != self.start.shape or tensor.dtype != self.start.dtype:
            raise ModelError(
                f"the buffer {self.name!r} of {type(self.module).__name__} became {tuple(tensor.shape)}, {tensor.dtype} in a "
                f"forward pass, and was {tuple(self.start.shape)}, {self.start.dtype} when the step began: the changes of "
                "several shards cannot be combined. Create it at its largest size before training, or keep it in a plain "
                "attribute if it is only a cache."
            )
        if as_bits:
            tensor, start = _bits(tensor), _bits(self.start)
        else:
            start = self.start
        change = _difference(tensor, start)
        if start.is_floating_point() or start.is_complex():
            return change.mul_(fraction)
        return change if is_lowest_shard else torch.zeros_like(change)

    def undo(self, value: Tensor) -> None:
        """Restore a value from earlier in the same shard. The buffer still counts as changed."""
        tensor = self.tensor
        if tensor.shape == value.shape and not torch.equal(tensor, value):
            (tensor.data if self.is_statistic else tensor).copy_(value)

    def put(self, value: Tensor) -> None:
        tensor = self.tensor
        if tensor.device.type == "cpu" and torch.equal(tensor, value) and tensor is self._marked_tensor:
            return  # writing, even the same value, would invalidate a second backward pass through its graph
        if tensor.shape == value.shape:
            (tensor.data if self.is_statistic else tensor).copy_(value)
        else:
            setattr(self.module, self.name, value.clone())
        self.mark()


_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    """A floating tensor's bits as integers, whose differences are exact; integers themselves."""
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return tensor.view(_AS_INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


def _from_bits(bits: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        return torch.view_as_complex(bits.contiguous().view(torch.view_as_real(like).dtype))
    return bits.view(like.dtype) if like.is_floating_point() else bits


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in float64 or int64 (complex numbers as pairs), so that differences can be summed."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor).double()
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def _base(start: Tensor) -> Tensor:
    """The values from which changes are measured: ``start``, but 0 where that is NaN, or so large that a difference from it
    would lose precision (the largest float, say, as the initial value of a minimum)."""
    wide = _wide(start)
    if not wide.is_floating_point():
        return wide
    return torch.where(wide.abs() < _LARGEST_BASE, wide, torch.zeros_like(wide))  # false for NaN too


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """The change, with -0.0 where there is none (and nowhere else): adding that changes nothing, not even a sign."""
    after, start, base = _wide(after), _wide(before), _base(before)
    return torch.where((after == base) & (start == base), torch.full_like(after, -0.0), (after - base).add(0))


def _changed(start: Tensor, change: Tensor) -> Tensor:
    """The start value plus a sum of changes. Values that no shard changed stay, even if changes are measured from 0."""
    base = _base(start)
    return torch.where((change == 0) & change.signbit(), _wide(start), base + change)


def _narrow(wide: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(wide).to(like.dtype) if like.is_complex() else wide.to(like.dtype)


def _pack(change: Tensor) -> Tensor:
    """A change as flat float64, exactly: 64-bit integers are split into two halves."""
    if change.dtype == torch.int64:
        return torch.stack([change >> 32, change & 0xFFFFFFFF]).double().flatten()
    return change.flatten()


def _unpack(packed: Tensor, like: Tensor) -> Tensor:
    if like.dtype == torch.int64:
        halves = packed.long().view(2, *like.shape)
        return (halves[0] << 32) + halves[1]
    return packed.view_as(like)


def add_changes(left: dict[int, Tensor], right: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Add the results of ``ShardBuffers.changes`` of two sets of shards; ``left`` is changed and returned."""
    for number, change in right.items():
        left[number] = left[number] + change if number in left else change
    return left


class _Owner:
    """A module with buffers. If one of them changed, all are treated as changed."""

    def __init__(self, module: nn.Module, slots: list[_Slot]) -> None:
        self.module = module
        self.slots = slots
        self.is_normalization = slots[0].is_statistic

    @property
    def changed(self) -> bool:
        # PyTorch's normalization layers write their statistics without increasing the version.
        if self.is_normalization and self.module.training:
            return True
        return any(slot.touched for slot in self.slots)


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMALIZATIONS = (
    *BATCH_NORMS,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


class ShardBuffers:
    """All buffers of the prepared models. Modules with buffers are identified by number, in the order of the models."""

    def __init__(self) -> None:
        self._owners: list[_Owner] = []
        self._unmade: list[tuple[nn.Module, str]] = []
        """Buffers that are None. One that a forward pass creates and then leaves alone is a constant created lazily."""
        self._made_late: list[_Slot] = []
        self._as_bits = False
        """Whether the phase has a single shard, whose buffers are sent as bits: adding a difference back would round."""
        self._looks: dict[Look, None] = {}
        """At the buffers of this process's shards in the phase."""
        self._num_looks: dict[int, int] = {}
        """For each module whose buffers have changed, the number of phases in which they were looked at."""
        self._told: set[tuple[str, str]] = set()
        """The kinds of modules and names of the buffers of which a loss was told."""

    def attach(self, model: nn.Module) -> None:
        """Add a model's buffers."""
        attached = {id(slot.tensor) for owner in self._owners for slot in owner.slots}
        for module in model.modules():
            slots = []
            for name, buffer in module.named_buffers(recurse=False):
                if id(buffer) not in attached:  # a buffer that two modules share is one buffer
                    attached.add(id(buffer))
                    slots.append(_Slot(module, name))
            if slots:
                self._owners.append(_Owner(module, slots))
            self._unmade.extend((module, name) for name, buffer in module._buffers.items() if buffer is None)

    @torch.no_grad()
    def begin_step(self, num_shards: int) -> None:
        """Begin a phase with so many shards that are not empty. Accepts changes since the last one (by loading a checkpoint,
        say)."""
        self._as_bits = num_shards == 1
        self._looks = {}
        for slot in self._changed_slots():
            slot.restart()

    @torch.no_grad()
    def changes(self, fraction: float, *, is_lowest_shard: bool, num_samples: int = 0) -> dict[int, Tensor]:
        """A shard's weighted changes, flat float64, by number of each changed module. Nothing is undone.

        Args:
            fraction: of the step's samples.
            is_lowest_shard: whether the shard is the first.
            num_samples: the shard's; 0 if it had several parts.
        """
        found = {}
        for number, owner in enumerate(self._owners):
            changed = owner.changed
            if changed:
                changes = [
                    slot.weighted(fraction, is_lowest_shard=is_lowest_shard, as_bits=self._as_bits) for slot in owner.slots
                ]
                found[number] = torch.cat(list(map(_pack, changes)))
            num_looks = self._num_looks.get(number, 0 if changed else _WATCHED_PHASES)
            if num_looks < _WATCHED_PHASES and not owner.is_normalization and not self._as_bits:
                looks = (look_at(number, i, slot.start, slot.tensor, num_samples) for i, slot in enumerate(owner.slots))
                self._looks.update(dict.fromkeys(looks))
        return found

    def looks(self) -> Sequence[str]:
        """How this process's shards have changed buffers in the phase, for ``judge`` on every rank. Nearly always none."""
        return list(map(str, self._looks))

    def judge(self, unforeseen: Iterable[Hashable]) -> None:
        """Warn where combining the shards' changes has lost something, once for each name.

        Args:
            unforeseen: the ``looks`` of all ranks among them, the same on every rank.
        """
        by_buffer: dict[tuple[int, int], list[Look]] = {}
        for item in unforeseen:
            if isinstance(item, str):
                look = Look.parse(item)
                by_buffer.setdefault((look.owner, look.slot), []).append(look)
        for (owner, number), looks in sorted(by_buffer.items()):
            slot = self._owners[owner].slots[number]
            name = type(slot.module).__name__, slot.name
            loss = judge(looks, is_averaged=slot.start.is_floating_point() or slot.start.is_complex())
            if loss is not None and name not in self._told:
                self._told.add(name)
                if not dist.is_initialized() or dist.get_rank() == 0:
                    say(
                        f"WARNING: buffer {slot.name!r} of {name[0]} {loss}. (Every shard starts from the same buffers: "
                        "docs/contract.md#buffers)"
                    )
        for owner in {owner for owner, _ in by_buffer}:
            self._num_looks[owner] = self._num_looks.get(owner, 0) + 1

    def absent(self, number: int) -> Tensor:
        """The neutral element for a module's ``changes``, of the same shape."""
        return torch.cat([_pack(torch.full_like(_wide(self._start(slot)), -0.0)) for slot in self._owners[number].slots])

    def _start(self, slot: _Slot) -> Tensor:
        return _bits(slot.start) if self._as_bits else slot.start

    def by_device(self, numbers: Iterable[int]) -> list[list[int]]:
        """Group modules by the device of their buffers, in an order that is the same on every rank."""
        groups: dict[torch.device, list[int]] = {}
        for number in sorted(numbers):
            groups.setdefault(self._owners[number].slots[0].start.device, []).append(number)
        return list(groups.values())

    @torch.no_grad()
    def apply(self, changes: Mapping[int, Tensor]) -> None:
        """Set buffers to their start values plus ``changes``, the sums over all shards."""
        for number, change in changes.items():
            slots = self._owners[number].slots
            starts = [self._start(slot) for slot in slots]
            wide = [_wide(start) for start in starts]
            sizes = [_pack(value).numel() for value in wide]
            for slot, start, value, part in zip(slots, starts, wide, torch.split(change, sizes), strict=True):
                result = _narrow(_changed(start, _unpack(part, value)), start)
                slot.put(_from_bits(result, slot.start) if self._as_bits else result)
                slot.restart()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A context in which changes are undone: for backward passes, in which ``checkpoint()`` runs layers again."""
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
                if owner.is_normalization or counts != [count for _, _, count in slots]:
                    for slot, value, _ in slots:
                        slot.undo(value)

    @torch.no_grad()
    def rewind(self) -> None:
        """Undo all changes since the start values were set."""
        for slot in self._changed_slots():
            slot.put(slot.start)

    def _check_late_buffers(self) -> None:
        for slot in self._made_late:
            if slot.touched:
                self._made_late = []  # raise once, and not again when the step is dropped
                raise ModelError(
                    f"buffer {slot.name!r} of {type(slot.module).__name__} was None when the model was prepared, and changes "
                    "during training. Its changes cannot be combined over the shards, so the answer would depend on the "
                    "number of processes: register it with a tensor, or run one forward pass before prepare()."
                )
        new = [(module, name) for module, name in self._unmade if getattr(module, name) is not None]
        if new:
            self._unmade = [buffer for buffer in self._unmade if buffer not in new]
            self._made_late += [_Slot(module, name) for module, name in new]

    def _changed_slots(self) -> list[_Slot]:
        if self._unmade or self._made_late:
            self._check_late_buffers()
        return [slot for owner in self._owners if owner.changed for slot in owner.slots]
