"""Finds tensors of the script that move with the steps and are in no checkpoint: averages of the
weights, of any class, and buffers of modules that were not prepared.

The search goes through the script's variables, and the objects in them, in steps 1, 3, 6, 12, ...
A tensor that has changed since the previous search is watched in the steps that follow:

- An *average* moves towards the weights. Its change from one write to the next points from its old
  value to the weights, and ends before them::

      before -------> now        weights      cosine(now - before, weights - before) >= 0.99
                                              and less than 98 % of the way

  Only averages do that. Copies arrive at the weights. Gradients, caches, refilled buffers and
  weights that a step tries out move in other directions.
- A *persistent buffer* is state according to the module's author. It counts if it changes in two
  steps to a value that is no copy of anything in the run's state.
"""

from __future__ import annotations

import functools
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
from lockstep._base.reports import warn
from lockstep._base.tracebacks.frames import owner
from lockstep._base.versions import version
from lockstep._data.states import has_state
from lockstep._plan.powers_of_two import PowersOfTwo
from lockstep._prepare.model import PreparedModel
from lockstep._prepare.structure import named_tensors
from lockstep._state.recovery.run_state import RunState
from lockstep._sync.buffers import NORMALIZATIONS
from lockstep._world.comm.dtensors import is_dtensor, to_local

_MOST_OBJECTS = 20_000
"""The number of objects after which a search ends. It has then taken some 20 ms."""
_MOST_ITEMS, _MOST_ROWS = 4096, 64
"""The largest numbers of items of a container that is searched, and of a container of containers.
Longer ones contain data."""
_SAMPLED = 256
"""The number of elements of a tensor that are compared."""
_LEAST = 8
"""The smallest number of elements of an average. In few dimensions a random change often points
towards the weights by chance."""
_STRAIGHT = 0.99
"""The smallest cosine between an average's change and the way to the weights. Rounding makes it
less than 1 if the average moves little."""
_ARRIVES = 0.98
"""The part of that way from which a write counts as a copy."""
_WRITES = 2
"""The number of matching writes after which a tensor counts as an average or a buffer."""
_MOST_TRIES = 8
"""The number of other writes after which a group is ignored until the next search."""
_MOST_WAITS = 64
"""The number of checks of values on a GPU after a search. Each waits for the device."""
_MOST_WARNINGS = 3
_SKIPPED = (Optimizer, LRScheduler, AveragedModel, DataLoader, Dataset)
_Place = tuple[CodeType | str, tuple[Key, ...]]
"""The function or module with a variable, and the place of an object in that variable."""
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_KINDS = (Tensor, nn.Parameter, nn.Buffer)
_CONTAINERS = (dict, list, tuple, set, frozenset)


@dataclass(slots=True)
class _Slot:
    """A place with a tensor in the top object of a group."""

    is_buffer: bool
    """Whether it is a persistent buffer."""
    sample: Tensor
    """Some elements of the tensor at the last check."""
    tensor: ref[Tensor]
    """The tensor at the last check. A weak reference: lockstep must not keep the script's
    memory."""
    num_writes: int = 0
    """The number of writes that match the pattern of an average or a buffer."""


@dataclass(slots=True)
class _Group:
    """Tensors that change together: those in one module, another object, or a variable. A group
    refers to the script's objects by their places only, since the script may delete or replace
    them."""

    home: CodeType | str
    """The function or module with the variable."""
    place: tuple[Key, ...]
    """The place of the top object there."""
    slots: dict[tuple[Key, ...], _Slot]
    """The slots that have changed, by their places in the top object."""
    mark: tuple[int, int] = (0, 0)
    """The identity and version of the first slot's tensor."""
    sample: Tensor | None = None
    """Some elements of the first slot's tensor, if they were compared."""
    num_checks: int = 0
    num_tries: int = 0

    def top(self) -> Held | None:
        """Returns the top object as it is now; None: it no longer exists."""
        home = next((variables for variables in _variables() if _home(variables) == self.home), None)
        return None if home is None else find(home, self.place)

    def is_written(self, top: Held) -> bool:
        """Returns whether the first tensor was written or replaced since the last call."""
        held = find(top, next(iter(self.slots)))
        tensor = None if held is None else held.value
        if not (isinstance(tensor, Tensor) and _is_plain(tensor)):
            return False
        self.num_checks += 1
        before, self.mark = self.mark, (id(tensor), version(tensor))
        # Writes through .data leave the version unchanged, so the values are compared, too. On a
        # GPU each comparison waits for the device, and so their number is limited.
        if self.mark == before and (tensor.is_cpu or self.num_checks <= _MOST_WAITS):
            now = sample(tensor)
            before_it, self.sample = self.sample, now
            return before_it is None or differ(before_it, now)
        return self.mark != before


class MovingTensors:
    """The search for moving tensors, which warns. On one rank, since all have the same.

    Args:
        state: the state of the run.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._looks = PowersOfTwo(between=True)
        self._known: dict[_Place, Tensor] | None = None
        """Samples of all candidates at the last search."""
        self._watched: list[_Group] = []
        self.next = 0
        """The first step for which ``end_step`` may have something to do."""
        self.is_watching = False
        """Whether a group must be checked whenever it may have been written."""
        self._warned = set[_Place]()

    def begin(self) -> None:
        """Searches for the first time, before the first step."""
        if self._known is None:
            self._known = {_place(held): sample(held.value) for held in self._candidates(_variables())}

    def end_step(self, step: int) -> None:
        """Searches, if that is due, or checks the watched groups. Called when the step's body has
        run."""
        if step >= self._looks.next and self._looks.take(step):
            if len(self._warned) < _MOST_WARNINGS:
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
        self._watched = [group for group in groups.values() if (group.home, group.place) not in self._warned]
        self.check()  # records the first mark of each

    def check(self) -> None:
        """Checks which groups were written since the last check."""
        for group in self._watched[:]:
            top = group.top()
            if top is None or not group.is_written(top):
                continue
            if self._compare(group, top) or group.num_tries > _MOST_TRIES:
                self._watched.remove(group)
        self.is_watching = bool(self._watched)

    def _compare(self, group: _Group, top: Held) -> bool:
        """Returns whether the state of a group is missing. If so, warns."""
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
                counts = counts and not has_come  # a history shifts its tensors from place to place
                slot.num_writes += counts
                num_tries = 1
            if slot.num_writes:
                found.append((held, slot))
        group.num_tries += num_tries
        if all(slot.num_writes < _WRITES for _, slot in found):
            return False
        self._warned.add((group.home, group.place))
        self._warn([held for held, _ in found], only_buffers=all(slot.is_buffer for _, slot in found))
        return True

    def _candidates(self, roots: Iterable[Held]) -> Iterator[Held]:
        """Yields the tensors that could be averages or missing buffers."""
        kept, weights = self._kept(), dict[torch.Size, list[Tensor]]()
        for adapter in self._state.objects:
            if isinstance(adapter.target, nn.Module):
                parameters, buffers = named_tensors(adapter.target)
                kept.update(map(id, parameters.values()))
                kept.update(map(id, buffers.values()))
                for tensor in parameters.values():
                    weights.setdefault(tensor.shape, []).append(tensor)

        for held in walk(roots, _enters, most=_MOST_OBJECTS, last=(Tensor,), without=kept):
            tensor = held.value
            if isinstance(tensor, Tensor) and _is_plain(tensor):
                could_be_average = tensor.numel() >= _LEAST and tensor.is_floating_point()
                if (could_be_average and any(map(_is_plain, weights.get(tensor.shape, ())))) or _is_persistent(held):
                    yield held

    def _tensors(self, *, with_others: bool = False) -> Iterator[Tensor]:
        """Yields the weights of all prepared models; ``with_others``: also their gradients and
        buffers, and the optimizers' state."""
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
        """Returns the ids of all objects that checkpoints contain, except the tensors of models,
        and of None, which stands for a bias that a layer does not have."""
        kept = {id(adapter.target) for adapter in self._state.objects if not isinstance(adapter.target, nn.Module)}
        kept.add(id(None))
        registered = [root(adapter.target) for adapter in self._state.registered.values()]
        kept.update(id(held.value) for held in walk(registered, lambda _: True, most=_MOST_OBJECTS))
        return kept

    def _warn(self, found: list[Held], *, only_buffers: bool) -> None:
        target = _owner_of(found)
        path, kind = target.path, type(target.value).__name__
        name = re.sub(r"\W+", "_", path.removeprefix("self.")).strip("_") or "average"
        what = (
            "has buffers that change with the steps" if only_buffers else "follows the weights, as an average of them does"
        )
        warn(
            f"{path} ({kind}) {what}, but was passed neither to team.prepare() nor to team.register(). Its state is in no "
            "checkpoint, so a resumed run would have different results. Register it before the loop: "
            f"team.register({name!r}, {path}){_how(target)}",
            code="state-not-saved",
        )


def _variables() -> list[Held]:
    """Returns the variables of the script: of its running functions, and of its modules."""
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


def _enters(value: Any) -> bool:
    """Returns whether to search an object for more."""
    kind: Any = type(value)
    if kind is FunctionType:
        return not _is_internal(value)
    if issubclass(kind, (dict, list, tuple)):
        return len(value) <= _MOST_ROWS or (len(value) <= _MOST_ITEMS and not _is_table(value))
    return _is_entered(kind)


@functools.lru_cache(maxsize=1024)  # a search meets many objects of few types
def _is_entered(kind: type) -> bool:
    return issubclass(kind, PreparedModel) or not (issubclass(kind, _SKIPPED) or _is_internal(kind))


def _is_internal(kind: Any) -> bool:
    return str(kind.__module__).startswith(("lockstep.", "torch.distributed."))


def _is_table(items: Any) -> bool:
    first = next(iter(items.values() if isinstance(items, dict) else items))
    return isinstance(first, _CONTAINERS)


def _is_plain(tensor: Tensor) -> bool:
    """Returns whether a tensor can be read and compared: it has a class of PyTorch, and is not part
    of a graph."""
    is_known = type(tensor) in _KINDS or is_dtensor(tensor)
    return is_known and not (
        tensor.grad_fn is not None
        or tensor.layout != torch.strided
        or tensor.is_nested
        or tensor.is_inference()
        or tensor.device.type == "meta"
        # Its memory is freed, for example by fsdp between two uses.
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
        # A counter of steps alone is no state that a resumed run would miss.
        and (held.value.numel() > 1 or held.value.is_floating_point())
    )


@torch.no_grad()
def sample(tensor: Tensor) -> Tensor:
    """Returns some elements of a tensor, spread over it, on the CPU."""
    flat = to_local(tensor.detach()).reshape(-1)
    return flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].cpu().to(torch.float64, copy=True)


def _by_shape(tensors: Iterable[Tensor]) -> dict[torch.Size, Tensor]:
    """Returns samples by shape, with a row for each tensor of that shape."""
    samples: dict[torch.Size, list[Tensor]] = {}
    for tensor in filter(_is_plain, tensors):
        samples.setdefault(tensor.shape, []).append(sample(tensor))
    return {shape: torch.stack(rows) for shape, rows in samples.items()}


def differ(one: Tensor, other: Tensor) -> bool:
    """Returns whether two samples differ."""
    return one.shape != other.shape or not bool((one == other).logical_or(one.isnan() & other.isnan()).all())


def _approaches(before: Tensor, now: Tensor, weights: Tensor) -> bool:
    """Returns whether a tensor has moved towards one of several weights (the rows), but not all the
    way."""
    if before.shape != now.shape or before.shape != weights.shape[1:]:
        return False
    moved, ways = now - before, weights - before
    products, lengths = ways @ moved, ways.square().sum(1)
    # product = |way| |moved| cosine, so it is compared with 0.99 |way| |moved|; and the part of the
    # way is product / |way|^2, so it is compared with 0.98 |way|^2. No division by 0.
    sizes = (lengths * moved.square().sum()).sqrt()
    return bool(((products > 0) & (products < _ARRIVES * lengths) & (products >= _STRAIGHT * sizes)).any())


def _top(held: Held) -> Held:
    """Returns the top object of a tensor's group: the outermost module that contains the tensor, or
    the nearest object, or the variable of the script."""
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
    """Returns the object to register: the innermost one that contains all tensors, or one around
    it that may also count updates (the outermost module, or the next object with a state)."""
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
    """Returns what else the registration requires."""
    value = target.value
    if isinstance(value, (Tensor, list, dict)):
        return ", and change it in place rather than replacing it (`average.lerp_(weight, 0.01)`)."
    if not has_state(value):
        return f", where {type(value).__name__} has state_dict() and load_state_dict()."
    return "."
