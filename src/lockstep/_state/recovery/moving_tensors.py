"""Tensors of the script that move with the steps and are in no checkpoint: averages of the weights,
of whatever class, and buffers of modules that were not prepared.

They are searched for in the script's variables, and what these hold, in steps 1, 2, 4, 8, ... What
has changed since the look before is watched in the steps that follow:

- An *average* moves towards the weights. Its change, from one write to the next, points from what
  it was to where the weights are, and ends before these. That is so of averages alone: not of
  copies (which get there), gradients, caches, buffers that are refilled, or weights that a step
  tries out.
- A *persistent buffer* is state by the word of the module's author. It must change in two steps, to
  something that is no copy of what the run's state holds.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from lockstep._base.held import Held, Key, find, root, walk
from lockstep._base.stopping import say
from lockstep._base.tracebacks.frames import owner
from lockstep._base.versions import version
from lockstep._data.states import has_state
from lockstep._plan.powers_of_two import PowersOfTwo
from lockstep._prepare.model import PreparedModel
from lockstep._state.recovery.run_state import RunState
from lockstep._sync.buffers import NORMALIZATIONS
from lockstep._world.comm.dtensors import is_dtensor, to_local

_MOST_OBJECTS = 20_000
"""Objects of the script after which a look ends: it takes some 20 ms then."""
_MOST_ITEMS, _MOST_ROWS = 4096, 64
"""Items up to which a container is searched, and up to which one of containers is: longer ones hold
data."""
_SAMPLED = 256
"""Elements that are compared of a tensor."""
_LEAST = 8
"""Elements that an average must have: of fewer, many a change points towards the weights by
chance."""
_STRAIGHT = 0.99
"""The least cosine between an average's change and the way to the weights. Less than 1 by rounding,
where it moves little."""
_ARRIVES = 0.98
"""The part of that way from which on a write counts as a copy."""
_WRITES = 2
"""Writes after which an average or a buffer is one."""
_MOST_TRIES = 8
"""Writes of other kinds after which a group is left alone until the next look."""
_MOST_WAITS = 64
"""Checks, behind a look, of values on a GPU."""
_MOST_SAID = 3
_SKIPPED = (Optimizer, LRScheduler, AveragedModel, DataLoader, Dataset)
_Place = tuple[CodeType | str, tuple[Key, ...]]
"""The function or module among whose variables something is, and its place there."""
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_KINDS = (Tensor, nn.Parameter, nn.Buffer)
_CONTAINERS = (dict, list, tuple, set, frozenset)


@dataclass(slots=True)
class _Slot:
    """A place in a group's top that holds a tensor."""

    is_buffer: bool
    """Whether it is a persistent buffer."""
    sample: Tensor
    """Some elements, as they were when it was last looked at."""
    tensor: ref[Tensor]
    """What was there then."""
    num_writes: int = 0
    """Those that count."""


@dataclass(slots=True)
class _Group:
    """What changes together: the tensors of a module, of another object, or of a variable. It holds
    nothing of the script, whose objects may come to their end or be replaced."""

    home: CodeType | str
    """The function or module among whose variables it is."""
    place: tuple[Key, ...]
    """That of its top there."""
    slots: dict[tuple[Key, ...], _Slot]
    """Those that have changed, by their places."""
    mark: tuple[int, int] = (0, 0)
    """The identity and version of the first one's tensor."""
    sample: Tensor | None = None
    """Some of its elements, if they were compared."""
    num_checks: int = 0
    num_tries: int = 0

    def top(self) -> Held | None:
        """What it is now; None: nothing."""
        home = next((variables for variables in _variables() if _home(variables) == self.home), None)
        return None if home is None else find(home, self.place)

    def is_written(self, top: Held) -> bool:
        """Whether the first tensor is another one, or was written, since this was last asked."""
        held = find(top, next(iter(self.slots)))
        tensor = None if held is None else held.value
        if not (isinstance(tensor, Tensor) and _is_plain(tensor)):
            return False
        self.num_checks += 1
        before, self.mark = self.mark, (id(tensor), version(tensor))
        # Writes through .data do not count as versions. On a GPU, to read is to wait for it.
        if self.mark == before and (tensor.is_cpu or self.num_checks <= _MOST_WAITS):
            now = sample(tensor)
            before_it, self.sample = self.sample, now
            return before_it is None or differ(before_it, now)
        return self.mark != before


class MovingTensors:
    """Finds them, and warns. On one rank, since all have the same.

    Args:
        state: the run's.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._looks = PowersOfTwo()
        self._known: dict[_Place, Tensor] | None = None
        """Samples of all that could be found, of the last look."""
        self._watched: list[_Group] = []
        self.next = 0
        """The first step for which ``end_step`` may have something to do."""
        self.is_watching = False
        """Whether something is to be checked whenever it may have been written."""
        self._said = set[_Place]()

    def begin(self) -> None:
        """Look for the first time, before the first step."""
        if self._known is None:
            self._known = {_place(held): sample(held.value) for held in self._candidates(_variables())}

    def end_step(self, step: int) -> None:
        """Look, if that is due, or check what is watched. Called when the step's body has run."""
        if step >= self._looks.next and self._looks.take(step):
            if len(self._said) < _MOST_SAID:
                self._look()
        elif self._watched:
            self.check()
        self.next = step + 1 if self._watched else self._looks.next

    def _look(self) -> None:
        before, known, groups = self._known or {}, dict[_Place, Tensor](), dict[int, _Group]()
        earlier_writes = {
            (group.home, group.place + place): slot.num_writes
            for group in self._watched
            for place, slot in group.slots.items()
        }
        for held in self._candidates(_variables()):
            place = _place(held)
            now = known[place] = sample(held.value)
            earlier = before.get(place)
            if earlier is None or differ(earlier, now):
                top = _top(held)
                group = groups.setdefault(id(top), _Group(*_place(top), {}))
                slot = group.slots[held.below(top)] = _Slot(_is_persistent(held), now, ref(held.value))
                slot.num_writes = earlier_writes.get(place, 0)
        self._known = known
        self._watched = [group for group in groups.values() if (group.home, group.place) not in self._said]
        self.check()  # which takes down their marks

    def check(self) -> None:
        """See which of the watched have been written since they were last checked."""
        for group in self._watched[:]:
            top = group.top()
            if top is None or not group.is_written(top):
                continue
            if self._compare(group, top) or group.num_tries > _MOST_TRIES:
                self._watched.remove(group)
        self.is_watching = bool(self._watched)

    def _compare(self, group: _Group, top: Held) -> bool:
        """Whether a group is found to be one whose state is missing, which is said."""
        weights: dict[torch.Size, Tensor] | None = None
        others: dict[torch.Size, Tensor] | None = None
        found: list[tuple[Held, _Slot]] = []
        num_tries = 0
        homes = {id(tensor): slot for slot in group.slots.values() if (tensor := slot.tensor()) is not None}
        for held in self._candidates([top]):
            slot = group.slots.get(held.below(top))
            if slot is None:
                continue
            before, now, has_come = slot.sample, sample(held.value), homes.get(id(held.value), slot) is not slot
            slot.tensor = ref(held.value)
            if differ(before, now):
                slot.sample = now
                if slot.is_buffer:
                    others = others or _by_shape(self._tensors(with_others=True))
                    counts = all(differ(now, other) for other in others.get(held.value.shape, ()))
                else:
                    weights = weights or _by_shape(self._tensors())
                    counts = _approaches(before, now, weights[held.value.shape])
                counts = counts and not has_come  # from another place: in a history, each moves on
                slot.num_writes += counts
                num_tries = 1
            if slot.num_writes:
                found.append((held, slot))
        group.num_tries += num_tries
        if all(slot.num_writes < _WRITES for _, slot in found):
            return False
        self._said.add((group.home, group.place))
        self._say([held for held, _ in found], only_buffers=all(slot.is_buffer for _, slot in found))
        return True

    def _candidates(self, roots: Iterable[Held]) -> Iterator[Held]:
        """What could be an average or a missing buffer."""
        kept = self._kept()
        shapes = {tensor.shape for tensor in self._tensors() if _is_plain(tensor)}

        def enters(value: Any) -> bool:
            if isinstance(value, (dict, list, tuple)):
                return len(value) <= _MOST_ROWS or (len(value) <= _MOST_ITEMS and not _is_table(value))
            if isinstance(value, PreparedModel):
                return True
            kind = value if isinstance(value, FunctionType) else type(value)
            is_internal = str(kind.__module__).startswith(("lockstep.", "torch.distributed."))
            return not (id(value) in kept or isinstance(value, _SKIPPED) or is_internal)

        for held in walk(roots, enters, most=_MOST_OBJECTS, last=(Tensor,)):
            tensor = held.value
            if isinstance(tensor, Tensor) and id(tensor) not in kept and _is_plain(tensor):
                is_average = tensor.shape in shapes and tensor.numel() >= _LEAST and tensor.is_floating_point()
                if is_average or _is_persistent(held):
                    yield held

    def _tensors(self, *, with_others: bool = False) -> Iterator[Tensor]:
        """The weights of all prepared models. ``with_others``: and their gradients and buffers, and
        the optimizers' state."""
        for adapter in self._state.objects:
            target = adapter.target
            if isinstance(target, nn.Module):
                yield from target.parameters()
                if with_others:
                    yield from target.buffers()
                    yield from (p.grad for p in target.parameters() if p.grad is not None)
            elif with_others and isinstance(target, Optimizer):
                yield from (item for state in target.state.values() for item in state.values() if isinstance(item, Tensor))

    def _kept(self) -> set[int]:
        """The ids of all that checkpoints hold."""
        kept = set[int]()
        for adapter in self._state.objects:
            target = adapter.target
            if isinstance(target, nn.Module):
                kept.update(map(id, (*target.parameters(), *target.buffers())))
            else:
                kept.add(id(target))
        registered = [root(adapter.target) for adapter in self._state.registered.values()]
        kept.update(id(held.value) for held in walk(registered, lambda _: True, most=_MOST_OBJECTS))
        return kept

    def _say(self, found: list[Held], *, only_buffers: bool) -> None:
        target = _owner_of(found)
        path, kind = target.path, type(target.value).__name__
        name = re.sub(r"\W+", "_", path.removeprefix("self.")).strip("_") or "average"
        what = "has buffers that change" if only_buffers else "moves towards the weights, as an average of them does,"
        say(
            f"WARNING: {path} ({kind}) {what} with the steps, and was given neither to team.prepare() nor to team.register(): "
            "its state is in no checkpoint, so a run that is interrupted and resumed would begin with what the script makes it "
            f"of, and give a different answer. Register it before the loop: team.register({name!r}, {path}){_how(target)}"
        )


def _variables() -> list[Held]:
    """The variables of the script: of its functions that are running, and its modules'."""
    found, names, frame = list[Held](), {"__main__": True}, inspect.currentframe()
    while frame is not None:
        if owner(frame.f_code.co_filename) == "user":
            names[str(frame.f_globals.get("__name__"))] = True
            if frame.f_code.co_name != "<module>":
                found.append(root(frame))
        frame = frame.f_back
    return found + [root(sys.modules[name]) for name in names if name in sys.modules]


def _place(held: Held) -> _Place:
    first = [held, *held.above][-1]
    return _home(first), held.below(first)


def _home(variables: Held) -> CodeType | str:
    value = variables.value
    return value.f_code if isinstance(value, FrameType) else str(getattr(value, "__name__", ""))


def _is_table(items: Any) -> bool:
    first = next(iter(items.values() if isinstance(items, dict) else items))
    return isinstance(first, _CONTAINERS)


def _is_plain(tensor: Tensor) -> bool:
    """Whether it can be read and compared as others: it is of no class of a library's own, and of
    no graph."""
    is_known = type(tensor) in _KINDS or is_dtensor(tensor)
    return is_known and not (
        tensor.grad_fn is not None
        or tensor.layout != torch.strided
        or tensor.is_nested
        or tensor.is_inference()
        or tensor.device.type == "meta"
        # freed, as by fsdp
        or (tensor.numel() > 0 and not is_dtensor(tensor) and tensor.untyped_storage().nbytes() == 0)
    )


def _is_persistent(held: Held) -> bool:
    holder = held.holder
    if holder is None or holder.key != "_buffers" or holder.holder is None:
        return False
    module, name = holder.holder.value, held.key[0]
    return (
        isinstance(module, nn.Module)
        and name not in module._non_persistent_buffers_set
        and not isinstance(module, NORMALIZATIONS)
        # a counter of steps is no state to miss by itself
        and (held.value.numel() > 1 or held.value.is_floating_point())
    )


@torch.no_grad()
def sample(tensor: Tensor) -> Tensor:
    """Some elements of a tensor, spread over it, on the CPU."""
    flat = to_local(tensor.detach()).reshape(-1)
    return flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].cpu().to(torch.float64, copy=True)


def _by_shape(tensors: Iterable[Tensor]) -> dict[torch.Size, Tensor]:
    """Samples, a row for each tensor of a shape."""
    samples: dict[torch.Size, list[Tensor]] = {}
    for tensor in filter(_is_plain, tensors):
        samples.setdefault(tensor.shape, []).append(sample(tensor))
    return {shape: torch.stack(rows) for shape, rows in samples.items()}


def differ(one: Tensor, other: Tensor) -> bool:
    """Whether two samples differ."""
    return one.shape != other.shape or not bool((one == other).logical_or(one.isnan() & other.isnan()).all())


def _approaches(before: Tensor, now: Tensor, weights: Tensor) -> bool:
    """Whether something has moved towards one of several weights (the rows), and not all the
    way."""
    if before.shape != now.shape or before.shape != weights.shape[1:]:
        return False
    moved, ways = now - before, weights - before
    products, lengths = ways @ moved, ways.square().sum(1)
    sizes = (lengths * moved.square().sum()).sqrt()
    return bool(((products > 0) & (products < _ARRIVES * lengths) & (products >= _STRAIGHT * sizes)).any())


def _top(held: Held) -> Held:
    """What the tensor's group has in common: the outermost module that it is part of, or else the
    nearest object, or the variable of the script."""
    nearest: Held | None = None
    outermost: Held | None = None
    below = held
    for above in held.above:
        if isinstance(above.value, (FrameType, ModuleType)):
            break
        if isinstance(above.value, nn.Module):
            outermost = above
        elif nearest is None and not isinstance(above.value, _CONTAINERS):
            nearest = above
        below = above
    return outermost or nearest or below


def _owner_of(all_held: list[Held]) -> Held:
    """What is to be registered: the innermost object that holds all of them, or one around it,
    which may count its updates: the outermost module, or the next object that has a state."""
    first, *others = [[held, *held.above] for held in all_held]
    shared = next((item for item in first if all(item in other for other in others)), first[0])
    target, *above = [item for item in (shared, *shared.above) if item.key not in _REGISTRIES]
    is_part = isinstance(target.value, nn.Module) or shared.key in _REGISTRIES or _is_persistent(shared)
    for item in above if is_part else ():
        if not isinstance(item.value, nn.Module) or isinstance(item.value, PreparedModel) or item.path == "self":
            break
        target = item
    above = [item for item in target.above if not isinstance(item.value, _CONTAINERS)]
    if above and not isinstance(above[0].value, (nn.Module, FrameType, ModuleType)) and has_state(above[0].value):
        return above[0]
    return target


def _how(target: Held) -> str:
    """What else must be so for that to work."""
    value = target.value
    if isinstance(value, (Tensor, list, dict)):
        return ", and change it in place rather than replacing it (`average.lerp_(weight, 0.01)`)."
    if not has_state(value):
        return f", where {type(value).__name__} has state_dict() and load_state_dict()."
    return "."
