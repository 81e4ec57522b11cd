"""Combining the buffers (BatchNorm statistics and the like) of a phase's shards, which all begin
with the same values.

Each shard's forward pass may change them. Its changes are recorded and undone, so that the next
shard starts from the same values, and at the end of the phase they are combined: for a floating
buffer, start + Σ fraction_i * (shard_i - start), the weighted mean over shards; an integer buffer
becomes that of the lowest shard. A buffer that no shard changed is unchanged (averaging a constant
with itself can make it drift). If the phase has a single shard, its buffers are used unchanged, bit
for bit.

::

    start -- shard 0 --> b0    change 0 = f0 (b0 - start) \
    start -- shard 1 --> b1    change 1 = f1 (b1 - start)  >  summed in the tree  -->  start + sum
    start -- shard 2 --> b2    change 2 = f2 (b2 - start) /

Every shard begins at ``start``, so its result does not depend on which shards this process has run
before. Changes are summed rather than values, since then a shard or rank without changes adds
nothing, and nothing has to be sent for it. Which buffers change is learned once per module: if any
shard has changed them, they are summed in later phases without asking. All normalization layers of
a model count as one module (``sync.joined``)."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from lockstep._base.errors import ModelError
from lockstep._base.reports import warn
from lockstep._base.versions import version
from lockstep._plan.shards import MicroBatch
from lockstep._plan.tree import Node
from lockstep._sync.buffer_looks import Look, find_lost_changes, look_at
from lockstep._sync.changes import Starts, as_bits, from_bits, pack_absent, packed_size, split
from lockstep._sync.copies import copy_all
from lockstep._sync.joined import Joined, can_join
from lockstep._sync.slots import Slot

_trains: Callable[[nn.Module], bool] = operator.attrgetter("training")
_kind_of: Callable[[Tensor], tuple[object, ...]] = operator.attrgetter("__class__", "layout", "device", "dtype", "shape")
_WATCHED_PHASES = 8
"""The number of phases in which a module's buffers are inspected, to warn where combining them
loses something. Each sends additional messages."""
_NOTHING = contextlib.nullcontext()


def _restart(groups: Iterable[_BufferGroup]) -> None:
    """Makes the current values the start values."""
    pairs = []
    for group in groups:
        group.join()
        for slot in group.slots:
            pairs += slot.restart()
    copy_all(pairs)


def _put(slots: Sequence[Slot | Joined], values: Sequence[Tensor]) -> None:
    """Gives buffers these values, one for each of their start values."""
    pairs, left = [], iter(values)
    for slot in slots:
        pairs += slot.put(*itertools.islice(left, len(slot.starts)))
    copy_all(pairs)
    for slot in slots:
        slot.mark()


def _put_back(slots: Sequence[Slot | Joined]) -> None:
    """Gives buffers their start values."""
    pairs = [pair for slot in slots for pair in slot.restore()]
    if pairs:
        with torch.no_grad():
            copy_all(pairs)
    for slot in slots:
        slot.mark()


def add_changes(left: dict[int, Tensor], right: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Adds the results of ``ShardBuffers.take_changes`` of two sets of shards; ``left`` is changed
    and returned, and so are its tensors."""
    shared = [number for number in right if number in left]
    if shared:
        torch._foreach_add_([left[number] for number in shared], [right[number] for number in shared])
    if len(shared) < len(right):
        left.update((number, change) for number, change in right.items() if number not in left)
    return left


class _BufferGroup:
    """A module with buffers, or all normalization layers of a model on one device. If one of the
    buffers changed, all are treated as changed."""

    # By module and not by buffer: the numbers that ranks exchange are fewer, and the buffers of a
    # module (mean, variance, count) nearly always change together. So do those of normalization
    # layers, of which each by itself would take as long as its own passes.

    def __init__(self, members: list[Slot]) -> None:
        self.members = members
        """Every buffer."""
        self.slots: list[Slot | Joined] = list(members)
        """What is combined: the buffers of normalization layers as one."""
        self.is_normalization = members[0].is_statistic
        self._modules = list(dict.fromkeys(slot.module for slot in members))
        self._kinds: list[tuple[object, ...]] = []
        self.join()

    @property
    def changed(self) -> bool:
        # PyTorch's normalization layers write their statistics without increasing the version.
        if self.is_normalization and any(map(_trains, self._modules)):
            return True
        return any(slot.touched for slot in self.slots)

    def counts(self) -> list[int]:
        """Returns how often each buffer was written, if PyTorch counts it."""
        return [] if self.is_normalization else [version(slot.tensor) for slot in self.members]

    def join(self) -> None:
        """Joins statistics, as they are now: a script may have given a layer others, of another
        dtype or on another device."""
        if self.is_normalization and all(isinstance(slot, Joined) and slot.are_unchanged for slot in self.slots):
            return
        tensors = [slot.tensor for slot in self.members] if self.is_normalization else []
        kinds = list(map(_kind_of, tensors))
        if kinds == self._kinds:
            return
        self._kinds = kinds
        joined = [slot for slot, tensor in zip(self.members, tensors, strict=True) if can_join(tensor)]
        others = [slot for slot, tensor in zip(self.members, tensors, strict=True) if not can_join(tensor)]
        self.slots = [*([Joined(joined, tensors[0].device)] if joined else []), *others]


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMALIZATIONS = (
    *BATCH_NORMS,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


@dataclass(slots=True)
class _Together:
    """The modules on one device whose changes are computed together, as long as their start values
    stay."""

    numbers: list[int]
    slots: list[Slot | Joined]
    sizes: list[int]
    """The lengths of their packed changes."""
    starts: Starts


class ShardBuffers:
    """All buffers of the prepared models. Modules with buffers are identified by number, in the
    order of the models; the normalization layers of a model on one device have one number."""

    def __init__(self) -> None:
        self._groups: list[_BufferGroup] = []
        self._watched: list[tuple[int, _BufferGroup]] = []
        """The groups of other modules than normalization layers, with their numbers."""
        self._unmade: list[tuple[nn.Module, str]] = []
        """The buffers that are None. A buffer that a forward pass creates and then does not change
        is a constant created lazily."""
        self._made_late: list[Slot] = []
        self._has_any = False
        """Whether there is any buffer, be it None. If not, nothing is done."""
        self._shard_samples = 0
        """The samples of the newest shard, in its micro-batches so far."""
        self._as_bits = False
        """Whether the phase has a single shard, whose buffers are sent as bits: start + (b - start)
        may be rounded to another number than b."""
        self._known: dict[tuple[int, ...], list[_Together]] = {}
        """The modules that a shard of the phase has changed, by their numbers."""
        self._looks: dict[Look, None] = {}
        """The looks at the buffers of this process's shards in the phase, in order."""
        self._num_looks: dict[int, int] = {}
        """The number of phases in which the buffers of each changed module were inspected."""
        self._told: set[tuple[str, str]] = set()
        """The buffers for which a warning was printed, as kind of module and name."""

    def attach(self, model: nn.Module) -> None:
        """Adds a model's buffers."""
        attached = {id(slot.tensor) for group in self._groups for slot in group.members}
        statistics: dict[torch.device, list[Slot]] = {}
        for module in model.modules():
            slots = []
            for name, buffer in module.named_buffers(recurse=False):
                if id(buffer) not in attached:  # a buffer that two modules share is one buffer
                    attached.add(id(buffer))
                    slots.append(_slot(module, name))
            if slots and slots[0].is_statistic and all(can_join(slot.tensor) for slot in slots):
                statistics.setdefault(slots[0].start.device, []).extend(slots)
            elif slots:
                self._groups.append(_BufferGroup(slots))
            self._unmade.extend((module, name) for name, buffer in module._buffers.items() if buffer is None)
        self._groups.extend(map(_BufferGroup, statistics.values()))
        self._watched = [(number, group) for number, group in enumerate(self._groups) if not group.is_normalization]
        self._has_any = bool(self._groups or self._unmade)

    def begin_phase(self, num_shards: int) -> None:
        """Begins a phase with this number of shards that are not empty. Accepts changes since the
        last phase (by loading a checkpoint, for example)."""
        self._as_bits = num_shards == 1
        self._looks, self._known = {}, {}
        if self._has_any:
            with torch.no_grad():
                _restart(self._groups[number] for number in self._changed_numbers())

    def end_shard(self, micro: MicroBatch) -> dict[int, Tensor] | None:
        """Ends a micro-batch. If it is the last of its shard, takes the shard's changes.
        Otherwise returns None: each micro-batch of a shard continues with the buffers
        of the one before."""
        self._shard_samples = micro.num_samples + (0 if micro.begins_shard else self._shard_samples)
        if not micro.ends_shard:
            return None
        if not self._has_any:
            return {}
        fraction = self._shard_samples / micro.step_samples
        samples = self._shard_samples if micro.begins_shard else 0
        return self.take_changes(fraction, is_lowest_shard=micro.shard == 0, num_samples=samples)

    def take_changes(self, fraction: float, *, is_lowest_shard: bool, num_samples: int = 0) -> dict[int, Tensor]:
        """Returns a shard's weighted changes, flat float64, by number of each changed module, and
        undoes them.

        Args:
            fraction: of the step's samples.
            is_lowest_shard: whether the shard is the first.
            num_samples: the shard's; 0 if it had several micro-batches.
        """
        # Asked once for both, since to ask compares buffers with their start values.
        changed = self._changed_numbers()
        found: dict[int, Tensor] = {}
        for together in self._together(changed):
            after: list[Tensor] = []
            for slot in together.slots:
                after += slot.take() if isinstance(slot, Joined) else [slot.read()]
            if self._as_bits:
                after = list(map(as_bits, after))
            packed = together.starts.pack(after, fraction, is_lowest_shard=is_lowest_shard)
            found.update(zip(together.numbers, split(packed, together.sizes), strict=True))
        for number, group in self._watched:
            num_looks = self._num_looks.get(number, 0 if number in changed else _WATCHED_PHASES)
            if num_looks < _WATCHED_PHASES and not self._as_bits:
                looks = (look_at(number, i, slot.start, slot.tensor, num_samples) for i, slot in enumerate(group.members))
                self._looks.update(dict.fromkeys(looks))
        _put_back([slot for number in changed for slot in self._groups[number].slots if isinstance(slot, Slot)])
        return found

    def looks(self) -> Sequence[str]:
        """Returns how this process's shards have changed buffers in the phase, for
        ``warn_of_lost_changes`` on every rank. Nearly always empty."""
        return list(map(str, self._looks))

    def warn_of_lost_changes(self, looks: Iterable[str]) -> None:
        """Warns where combining the shards' changes has lost something, once for each name.

        Args:
            looks: the ``looks`` of all ranks, the same on every rank.
        """
        by_buffer: dict[tuple[int, int], list[Look]] = {}
        for look in map(Look.parse, looks):
            by_buffer.setdefault((look.group, look.slot), []).append(look)
        for (group, number), found in sorted(by_buffer.items()):
            slot = self._groups[group].members[number]
            name = type(slot.module).__name__, slot.name
            loss = find_lost_changes(found, is_averaged=slot.start.is_floating_point() or slot.start.is_complex())
            if loss is not None and name not in self._told:
                self._told.add(name)
                if not dist.is_initialized() or dist.get_rank() == 0:
                    warn(
                        f"buffer {slot.name!r} of {name[0]} {loss}. (Every shard starts from the same buffers: "
                        "docs/contract.md#buffers)",
                        code="buffer-lost",
                    )
        for group in {group for group, _ in by_buffer}:
            self._num_looks[group] = self._num_looks.get(group, 0) + 1

    def absent(self, number: int) -> Tensor:
        """Returns the neutral element for a module's ``changes``, of the same shape."""
        return torch.cat([pack_absent(start) for start in self._starts(self._groups[number].slots)])

    def packed_size(self, number: int) -> int:
        """Returns the length of a module's ``changes``."""
        return sum(map(packed_size, self._starts(self._groups[number].slots)))

    def _together(self, numbers: Iterable[int]) -> list[_Together]:
        """Returns these modules, by device."""
        key = tuple(sorted(numbers))
        if key not in self._known:
            self._known[key] = list(map(self._join, self.by_device(key)))
        return self._known[key]

    def _join(self, numbers: list[int]) -> _Together:
        slots = [slot for number in numbers for slot in self._groups[number].slots]
        return _Together(numbers, slots, list(map(self.packed_size, numbers)), Starts(self._starts(slots)))

    def _starts(self, slots: Iterable[Slot | Joined]) -> list[Tensor]:
        starts = [start for slot in slots for start in slot.starts]
        return list(map(as_bits, starts)) if self._as_bits else starts

    def by_device(self, numbers: Iterable[int]) -> list[list[int]]:
        """Groups modules by the device of their buffers, in an order that is the same on every
        rank."""
        # Sorted, because each group is one exchange, and the numbers come from sets.
        groups: dict[torch.device, list[int]] = {}
        for number in sorted(numbers):
            groups.setdefault(self._groups[number].slots[0].starts[0].device, []).append(number)
        return list(groups.values())

    def start_sums(
        self, numbers: Iterable[int], nodes: Sequence[Node[dict[int, Tensor]]], start: Callable[[list[Tensor]], None]
    ) -> dict[int, Tensor]:
        """Starts summing the changes of these modules over all ranks.

        Args:
            numbers: of the modules, the same on every rank.
            nodes: the sums of this rank's shards' changes, in tree order.
            start: a function that starts summing tensors over all ranks, one for each of this
                rank's nodes; the first becomes the sum.

        Returns:
            The sums by module, which are valid when what ``start`` has started has finished.
        """
        sums: dict[int, Tensor] = {}
        for together in self._together(numbers):
            groups = together.numbers
            tensors = [torch.cat([node.value[n] if n in node.value else self.absent(n) for n in groups]) for node in nodes]
            start(tensors)
            sums.update(zip(groups, torch.split(tensors[0], together.sizes), strict=True))
        return sums

    @torch.no_grad()
    def apply(self, changes: Mapping[int, Tensor]) -> None:
        """Sets buffers to their start values plus ``changes``, the sums over all shards."""
        for together in self._together(changes):
            slots = together.slots
            packed = [changes[number] for number in together.numbers]
            results = together.starts.plus(packed[0] if len(packed) == 1 else torch.cat(packed))
            if self._as_bits:
                starts = [start for slot in slots for start in slot.starts]
                results = [from_bits(result, start) for result, start in zip(results, starts, strict=True)]
            _put(slots, results)
            # What was put into joined ones is their start value already.
            copy_all(pair for slot in slots if isinstance(slot, Slot) for pair in slot.restart())
        self._known = {}

    def restored_after(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which changes are undone: for backward passes, in which
        ``checkpoint()`` runs layers again, whose buffers have been written in the forward pass."""
        groups = [group for group in self._groups if group.changed]
        return _RestoredAfter(groups) if groups else _NOTHING

    def rewind(self) -> None:
        """Undoes all changes since the start values were set."""
        _put_back([slot for number in self._changed_numbers() for slot in self._groups[number].slots])

    def _check_late_buffers(self) -> None:
        for slot in self._made_late:
            if slot.touched:
                self._made_late = []  # raise once, and not again when the step is abandoned
                raise ModelError(
                    f"buffer {slot.name!r} of {type(slot.module).__name__} was None when the model was prepared, but changes "
                    "during training, so results would depend on the number of processes. Register it with a tensor, or run "
                    "one forward pass before prepare().",
                    code="late-buffer",
                )
        new = [(module, name) for module, name in self._unmade if getattr(module, name) is not None]
        if new:
            self._unmade = [buffer for buffer in self._unmade if buffer not in new]
            self._made_late += [_slot(module, name) for module, name in new]

    def _changed_numbers(self) -> list[int]:
        """Returns the numbers of the modules whose buffers have changed since the start values were
        set."""
        if self._unmade or self._made_late:
            self._check_late_buffers()
        return [number for number, group in enumerate(self._groups) if group.changed]


def _slot(module: nn.Module, name: str) -> Slot:
    return Slot(module, name, is_statistic=isinstance(module, NORMALIZATIONS))


class _RestoredAfter(contextlib.AbstractContextManager[None]):
    """A context after which groups of buffers have the values from before."""

    # A generator would take twice the calls in Python, once for each shard.

    def __init__(self, groups: Sequence[_BufferGroup]) -> None:
        self._groups = groups
        self._counts = [group.counts() for group in groups]
        self._before: list[Tensor] = []

    @override
    def __enter__(self) -> None:
        pairs = []
        for group in self._groups:
            for slot in group.slots:
                if isinstance(slot, Joined):
                    self._before.append(slot.read())  # a copy
                else:
                    tensor = slot.tensor.detach()
                    self._before.append(torch.empty_like(tensor))
                    pairs.append((self._before[-1], tensor))
        copy_all(pairs)

    @override
    def __exit__(self, *_: object) -> None:
        values = iter(self._before)
        pairs = []
        for group, count in zip(self._groups, self._counts, strict=True):
            # Normalization layers may have written without a count. So does this.
            is_written = group.is_normalization or group.counts() != count
            for slot, value in zip(group.slots, values, strict=False):
                if is_written:
                    pairs += slot.put_back(value)
        if pairs:
            with torch.no_grad():
                copy_all(pairs)
