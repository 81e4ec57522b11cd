"""Warns of objects that act on the run's parameters but were not prepared: their state is in no
checkpoint.

Each object causes one warning, when it first acts in a step. Optimizers are noticed by a hook on
their steps. Schedules, averages and loss scalers are searched for among the objects of the process
when the first pass begins. Averages of unknown classes are found by what they do (see
``moving_tensors.py``).
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lockstep._base.errors import UsageError
from lockstep._base.reports import warn
from lockstep._base.versions import version
from lockstep._listener import Listener
from lockstep._prepare.guards import progress_of
from lockstep._state.recovery.moving_tensors import MovingTensors, differ, sample
from lockstep._state.recovery.run_state import RunState

_KINDS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    LRScheduler: ("acts on the optimizer of prepared parameters", progress_of),
    AveragedModel: ("averages weights", lambda average: version(average.n_averaged)),
    GradScaler: ("scales losses", lambda scaler: scaler.state_dict()),
}
"""The effect of each kind of object, and a function for its progress."""


_MOST_TRIES = 8
"""The number of steps in which an optimizer's parameters are compared with
their values at the end of the step before."""
_NOT_PASSED = "was passed neither to team.prepare() nor to team.register()"


@dataclass(slots=True)
class _Other:
    """An optimizer whose parameters belong to no prepared model."""

    optimizer: ref[Optimizer]
    before: list[Tensor]
    """Samples of the parameters before the optimizer acted in a step."""
    after: list[Tensor] | None = None
    """Samples of the parameters at the end of that step. If the script resets them for each step
    (as a perturbation), they are no state."""
    is_judged: bool = False
    num_tries: int = 0


class UnsavedObjects(Listener):
    """The search for objects whose state is in no checkpoint, since they were not prepared.

    Args:
        trains: whether an optimizer has parameters of prepared models.
        scales_loss: whether the run scales its losses.
        may_warn: whether to print warnings: on one rank, and only if checkpoints are saved.
    """

    def __init__(self, state: RunState, trains: Callable[[Optimizer], bool], *, scales_loss: bool, may_warn: bool) -> None:
        self._state = state
        self._trains = trains
        self._scales_loss = scales_loss
        self._may_warn = may_warn
        self._moving = MovingTensors(state)
        self._has_searched = False
        self._resting: list[tuple[ref[Any], Any]] = []
        """Schedules, averages and scalers that have not acted since the search, with their
        progress."""
        self._acting: list[ref[Any]] = []
        """Such objects that have acted since the search."""
        self._others: list[_Other] = []
        """Optimizers of parameters that no prepared model has."""
        self._judged: dict[int, ref[Optimizer]] = {}
        """The optimizers that were judged, by id. A later optimizer may reuse an id, and so the
        reference is compared."""

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        if self._moving.is_watching:
            self._moving.check()
        if self._may_warn and not self._has_searched:
            self._moving.begin()
            self._has_searched = True  # only once: it takes some 40 ms
            # By exact type: isinstance() would take ten times as long, and call the code of
            # proxies. Without an instruction of Python for each of some 300,000 objects.
            kinds, objects = _with_subclasses(*_KINDS), gc.get_objects()
            candidates = list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))
            del objects
            self._resting = [(ref(item), _progress(item)) for item in candidates]

    @override
    def before_optimizer(self, optimizer: Optimizer) -> None:
        """Raises:
        UsageError: its gradients may be scaled, or have overflowed.
        """
        if self._moving.is_watching:
            self._moving.check()
        known = self._judged.get(id(optimizer))
        if known is not None and known() is optimizer:
            return
        self._judged[id(optimizer)] = ref(optimizer)
        name = type(optimizer).__name__
        if self._scales_loss and id(optimizer) not in _ids_in(self._prepared):
            raise UsageError(
                f"{name}.step(): this optimizer was not passed to team.prepare(), and the run scales its losses. Gradients are "
                "unscaled, and skipped after an overflow, for prepared optimizers only. Prepare it together with its model.",
                code="unprepared-optimizer-scaled",
            )
        if not self._is_kept(optimizer):
            self._warn(f"{name} acts on prepared parameters")

    @override
    def before_other_optimizer(self, optimizer: Optimizer) -> None:
        if not self._may_warn:
            return
        other = next((other for other in self._others if other.optimizer() is optimizer), None)
        if other is None:
            self._others.append(_Other(ref(optimizer), _samples(optimizer)))
        elif other.after is not None and not other.is_judged:
            now = _samples(optimizer)
            other.num_tries += 1
            is_left = _are_equal(now, other.after) and not _are_equal(other.before, other.after)
            other.is_judged = is_left or other.num_tries == _MOST_TRIES
            if is_left:
                self._judge(optimizer)
            other.before, other.after = now, None

    def _judge(self, optimizer: Optimizer) -> None:
        """Warns of an optimizer whose parameters keep their values from step to step, if they or
        its state are in no checkpoint."""
        kept = _ids_in([*self._prepared, *(adapter.target for adapter in self._state.registered.values())])
        trains_kept = all(id(parameter) in kept for group in optimizer.param_groups for parameter in group["params"])
        if not trains_kept or (optimizer.state and id(optimizer) not in kept):
            self._warn(f"{type(optimizer).__name__} trains parameters of no prepared model", of="neither they nor it")

    @override
    def end_step(self, step: int, num_samples: int) -> None:
        if self._others:
            self._others = [other for other in self._others if other.optimizer() is not None]
            for other in self._others:
                optimizer = other.optimizer()
                if optimizer is not None and not other.is_judged and other.after is None:
                    other.after = _samples(optimizer)
        if self._may_warn and step >= self._moving.next:
            self._moving.end_step(step)
        if not self._resting:
            return
        alive = [(item, before) for reference, before in self._resting if (item := reference()) is not None]
        active = [item for item, before in alive if _progress(item) != before]
        self._resting = [(ref(item), before) for item, before in alive if not any(item is acting for acting in active)]
        self._acting += map(ref, active)
        for item in active:
            optimizer = getattr(item, "optimizer", None)  # a schedule's
            acts = optimizer is None or self._trains(optimizer)
            # A part of a schedule may begin to act many steps after it.
            peers = [peer for reference in self._acting if (peer := reference()) is not None]
            is_part = id(item) in _ids_in([_parts(peer) for peer in peers])
            if acts and not is_part and not self._is_kept(item):
                self._warn(f"{type(item).__name__} {_action(item)}")

    def _is_kept(self, item: Any) -> bool:
        registered = [adapter.target for adapter in self._state.registered.values()]
        return id(item) in _ids_in([*self._prepared, *registered])

    @property
    def _prepared(self) -> list[Any]:
        return [adapter.target for adapter in self._state.objects]

    def _warn(self, action: str, of: str = "") -> None:
        if self._may_warn:
            passed = f"{of} was passed to team.prepare() or team.register()" if of else _NOT_PASSED
            warn(
                f"{action}, but {passed}: its state is in no checkpoint, so a resumed run would have different results. "
                "Prepare it with the others, or register it: team.register(name, it).",
                code="state-not-saved",
            )


def _samples(optimizer: Optimizer) -> list[Tensor]:
    return [sample(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def _are_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and not any(map(differ, some, others))


def _with_subclasses(*kinds: type) -> set[type]:
    return set(kinds).union(*(_with_subclasses(*kind.__subclasses__()) for kind in kinds))


def _progress(item: Any) -> Any:
    return next(progress for kind, (_, progress) in _KINDS.items() if isinstance(item, kind))(item)


def _action(item: Any) -> str:
    return next(action for kind, (action, _) in _KINDS.items() if isinstance(item, kind))


def _parts(item: Any) -> Iterable[Any]:
    """Returns the objects in an object, except the optimizer of a schedule, which is not in the
    schedule's state."""
    if isinstance(item, (list, tuple)):
        return item
    parts = item if isinstance(item, Mapping) else getattr(item, "__dict__", {})
    return [part for part in parts.values() if not (isinstance(item, LRScheduler) and isinstance(part, Optimizer))]


def _ids_in(items: Iterable[Any]) -> set[int]:
    """Returns the ids of objects and of the objects inside them, for example the schedules in a
    SequentialLR, or in an object of the script."""
    ids, level = set[int](), list(items)
    for _ in range(4):
        ids.update(map(id, level))
        level = [part for item in level for part in _parts(item)]
    return ids
