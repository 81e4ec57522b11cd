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
shard has changed them, they are summed in later phases without asking."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep._base.errors import ModelError
from lockstep._base.reports import warn
from lockstep._base.versions import version
from lockstep._plan.shards import MicroBatch
from lockstep._plan.tree import Node
from lockstep._sync.buffer_looks import Look, find_lost_changes, look_at
from lockstep._sync.changes import as_bits, changed, from_bits, pack, pack_absent, packed_size
from lockstep._sync.copies import copy_all

_start_of: Callable[[_Slot], Tensor] = operator.attrgetter("start")
_MOST_COMPARED = 65536
"""The most elements of a buffer that is compared with its start value."""
_WATCHED_PHASES = 8
"""The number of phases in which a module's buffers are inspected, to warn where combining them
loses something. Each sends additional messages."""


class _Slot:
    """One buffer: its module and name, its value when the phase began, and the sum of the shards'
    changes."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.name = name
        # Read some thirty times a step for each buffer: getattr() takes five times as long.
        self._buffers = module._buffers
        self.is_statistic = isinstance(module, NORMALIZATIONS)
        """Whether it belongs to a normalization layer of PyTorch, which writes it through
        ``.data``, since no backward pass needs its values: so a second backward pass through one
        forward pass works as it does in a plain script."""
        self._own = self.tensor
        """The tensor that was there when the model was prepared, or one made here. Any other tensor
        is the script's (an input, for example), and is not written to."""
        self.start = self.tensor.detach().clone()
        self.mark()

    @property
    def tensor(self) -> Tensor:
        buffer = self._buffers[self.name]
        assert buffer is not None
        return buffer

    def writable(self, like: Tensor) -> Tensor:
        """Returns the buffer for writing: a new one if a forward pass has assigned another tensor,
        or one of another shape."""
        if self.tensor is not self._own or self._own.shape != like.shape:
            self._own = torch.empty_like(like)
            setattr(self.module, self.name, self._own)
        return self._own.data if self.is_statistic else self._own

    def mark(self) -> None:
        tensor = self.tensor
        self._marked_tensor = tensor
        self._marked_version = version(tensor)

    @property
    def touched(self) -> bool:
        tensor = self.tensor
        if tensor is not self._marked_tensor or version(tensor) != self._marked_version:
            return True
        # Writes through ``.data`` or by native code are not counted. Comparing is cheap on the CPU;
        # on a GPU it would wait.
        is_compared = tensor.device.type == "cpu" and tensor.numel() <= _MOST_COMPARED
        return is_compared and not torch.equal(tensor.detach(), self.start)

    def check_form(self) -> None:
        """Raises:
        ModelError: the shard changed the buffer's shape or dtype.
        """
        tensor = self.tensor
        if tensor.shape != self.start.shape or tensor.dtype != self.start.dtype:
            raise ModelError(
                f"the buffer {self.name!r} of {type(self.module).__name__} became {tuple(tensor.shape)}, {tensor.dtype} in a "
                f"forward pass, but was {tuple(self.start.shape)}, {self.start.dtype} when the step began, so the changes of "
                "several shards cannot be combined. Create it at its largest size before training, or keep it in a plain "
                "attribute if it is only a cache.",
                code="buffer-changed-form",
            )


def _restart(slots: Sequence[_Slot]) -> None:
    """Makes the current values the start values."""
    pairs = []
    for slot in slots:
        tensor = slot.tensor.detach()
        if tensor.shape != slot.start.shape or tensor.dtype != slot.start.dtype:
            slot.start = tensor.clone()
        slot.mark()
        pairs.append((slot.start, tensor))
    copy_all(pairs)


def _put(slots: Sequence[_Slot], values: Sequence[Tensor]) -> None:
    """Gives buffers these values."""
    pairs = []
    for slot, value in zip(slots, values, strict=True):
        tensor = slot.tensor
        if tensor.device.type == "cpu" and torch.equal(tensor, value) and tensor is slot._marked_tensor:
            # writing, even the same value, would invalidate a second backward pass through its
            # graph
            continue
        pairs.append((slot.writable(value), value))
    copy_all(pairs)
    for slot in slots:
        slot.mark()


def add_changes(left: dict[int, Tensor], right: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Adds the results of ``ShardBuffers.changes`` of two sets of shards; ``left`` is changed and
    returned."""
    shared = [number for number in right if number in left]
    sums = torch._foreach_add([left[n] for n in shared], [right[n] for n in shared]) if shared else ()
    left.update(right)
    left.update(zip(shared, sums, strict=True))
    return left


class _Owner:
    """A module with buffers. If one of them changed, all are treated as changed."""

    # By module and not by buffer: the numbers that ranks exchange are fewer, and the buffers of a
    # module (mean, variance, count) nearly always change together.

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

    def counts(self) -> list[int]:
        """Returns how often each buffer was written, if PyTorch counts it."""
        return [version(slot.tensor) for slot in self.slots]


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMALIZATIONS = (
    *BATCH_NORMS,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


class ShardBuffers:
    """All buffers of the prepared models. Modules with buffers are identified by number, in the
    order of the models."""

    def __init__(self) -> None:
        self._owners: list[_Owner] = []
        self._unmade: list[tuple[nn.Module, str]] = []
        """The buffers that are None. A buffer that a forward pass creates and then does not change
        is a constant created lazily."""
        self._made_late: list[_Slot] = []
        self._shard_samples = 0
        """The samples of the newest shard, in its micro-batches so far."""
        self._as_bits = False
        """Whether the phase has a single shard, whose buffers are sent as bits: start + (b - start)
        may be rounded to another number than b."""
        self._looks: dict[Look, None] = {}
        """The looks at the buffers of this process's shards in the phase, in order."""
        self._num_looks: dict[int, int] = {}
        """The number of phases in which the buffers of each changed module were inspected."""
        self._told: set[tuple[str, str]] = set()
        """The buffers for which a warning was printed, as kind of module and name."""

    def attach(self, model: nn.Module) -> None:
        """Adds a model's buffers."""
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
        """Begins a phase with this number of shards that are not empty. Accepts changes since the
        last phase (by loading a checkpoint, for example)."""
        self._as_bits = num_shards == 1
        self._looks = {}
        _restart(self._changed_slots())

    def end_shard(self, micro: MicroBatch) -> dict[int, Tensor] | None:
        """Ends a micro-batch. If it is the last of its shard, returns the shard's ``changes`` and
        undoes them. Otherwise returns None: each micro-batch of a shard continues with the buffers
        of the one before."""
        self._shard_samples = micro.num_samples + (0 if micro.begins_shard else self._shard_samples)
        if not micro.ends_shard:
            return None
        fraction = self._shard_samples / micro.step_samples
        samples = self._shard_samples if micro.begins_shard else 0
        found = self.changes(fraction, is_lowest_shard=micro.shard == 0, num_samples=samples)
        self.rewind()
        return found

    @torch.no_grad()
    def changes(self, fraction: float, *, is_lowest_shard: bool, num_samples: int = 0) -> dict[int, Tensor]:
        """Returns a shard's weighted changes, flat float64, by number of each changed module.
        Nothing is undone.

        Args:
            fraction: of the step's samples.
            is_lowest_shard: whether the shard is the first.
            num_samples: the shard's; 0 if it had several micro-batches.
        """
        are_changed = [owner.changed for owner in self._owners]
        found: dict[int, Tensor] = {}
        for numbers in self.by_device(itertools.compress(itertools.count(), are_changed)):
            slots = [slot for number in numbers for slot in self._owners[number].slots]
            for slot in slots:
                slot.check_form()
            after = [as_bits(slot.tensor) if self._as_bits else slot.tensor for slot in slots]
            packed = pack(list(map(self._start, slots)), after, fraction, is_lowest_shard=is_lowest_shard)
            found.update(zip(numbers, torch.split(packed, list(map(self.packed_size, numbers))), strict=True))
        for number, owner in enumerate(self._owners):
            num_looks = self._num_looks.get(number, 0 if are_changed[number] else _WATCHED_PHASES)
            if num_looks < _WATCHED_PHASES and not owner.is_normalization and not self._as_bits:
                looks = (look_at(number, i, slot.start, slot.tensor, num_samples) for i, slot in enumerate(owner.slots))
                self._looks.update(dict.fromkeys(looks))
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
            by_buffer.setdefault((look.owner, look.slot), []).append(look)
        for (owner, number), found in sorted(by_buffer.items()):
            slot = self._owners[owner].slots[number]
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
        for owner in {owner for owner, _ in by_buffer}:
            self._num_looks[owner] = self._num_looks.get(owner, 0) + 1

    def absent(self, number: int) -> Tensor:
        """Returns the neutral element for a module's ``changes``, of the same shape."""
        return torch.cat([pack_absent(self._start(slot)) for slot in self._owners[number].slots])

    def packed_size(self, number: int) -> int:
        """Returns the length of a module's ``changes``."""
        return sum(packed_size(self._start(slot)) for slot in self._owners[number].slots)

    def _start(self, slot: _Slot) -> Tensor:
        return as_bits(slot.start) if self._as_bits else slot.start

    def by_device(self, numbers: Iterable[int]) -> list[list[int]]:
        """Groups modules by the device of their buffers, in an order that is the same on every
        rank."""
        # Sorted, because each group is one exchange, and the numbers come from sets.
        groups: dict[torch.device, list[int]] = {}
        for number in sorted(numbers):
            groups.setdefault(self._owners[number].slots[0].start.device, []).append(number)
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
        for owners in self.by_device(numbers):
            tensors = [torch.cat([node.value[n] if n in node.value else self.absent(n) for n in owners]) for node in nodes]
            start(tensors)
            sums.update(zip(owners, torch.split(tensors[0], list(map(self.packed_size, owners))), strict=True))
        return sums

    @torch.no_grad()
    def apply(self, changes: Mapping[int, Tensor]) -> None:
        """Sets buffers to their start values plus ``changes``, the sums over all shards."""
        for numbers in self.by_device(changes):
            slots = [slot for number in numbers for slot in self._owners[number].slots]
            results = changed(list(map(self._start, slots)), torch.cat([changes[number] for number in numbers]))
            if self._as_bits:
                results = [from_bits(result, slot.start) for result, slot in zip(results, slots, strict=True)]
            _put(slots, results)
            _restart(slots)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Returns a context in which changes are undone: for backward passes, in which
        ``checkpoint()`` runs layers again, whose buffers have been written in the forward pass."""
        owners = [owner for owner in self._owners if owner.changed]
        slots = [slot for owner in owners for slot in owner.slots]
        with torch.no_grad():
            tensors = [slot.tensor.detach() for slot in slots]
            before = list(map(torch.empty_like, tensors))
            copy_all(zip(before, tensors, strict=True))
        counts = [owner.counts() for owner in owners]
        try:
            yield
        finally:
            values = iter(before)
            pairs = []
            for owner, count in zip(owners, counts, strict=True):
                # Normalization layers may have written without a count. So does this.
                is_written = owner.is_normalization or owner.counts() != count
                for slot, value in zip(owner.slots, values, strict=False):
                    if is_written and slot.tensor.shape == value.shape:
                        pairs.append((slot.writable(value), value))
            with torch.no_grad():
                copy_all(pairs)

    @torch.no_grad()
    def rewind(self) -> None:
        """Undoes all changes since the start values were set."""
        slots = self._changed_slots()
        _put(slots, list(map(_start_of, slots)))

    def _check_late_buffers(self) -> None:
        for slot in self._made_late:
            if slot.touched:
                self._made_late = []  # raise once, and not again when the step is dropped
                raise ModelError(
                    f"buffer {slot.name!r} of {type(slot.module).__name__} was None when the model was prepared, but changes "
                    "during training, so results would depend on the number of processes. Register it with a tensor, or run "
                    "one forward pass before prepare().",
                    code="late-buffer",
                )
        new = [(module, name) for module, name in self._unmade if getattr(module, name) is not None]
        if new:
            self._unmade = [buffer for buffer in self._unmade if buffer not in new]
            self._made_late += [_Slot(module, name) for module, name in new]

    def _changed_slots(self) -> list[_Slot]:
        if self._unmade or self._made_late:
            self._check_late_buffers()
        return [slot for owner in self._owners if owner.changed for slot in owner.slots]
