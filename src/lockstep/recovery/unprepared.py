"""What acts on the run's parameters without being part of the run: right while it trains, and in none of its checkpoints.

It is said once for each, when it acts for the first time in a step: optimizers, whose steps all come by the loop; schedules,
averages and loss scalers, which nothing tells of, and which are therefore looked for among the objects of the process, at the
first step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep.errors import UsageError
from lockstep.listener import Listener
from lockstep.prepare.watched import progress_of
from lockstep.recovery.run_state import RunState
from lockstep.stopping import say
from lockstep.sync.buffers import version

_KINDS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    LRScheduler: ("acts on the optimizer of prepared parameters", progress_of),
    AveragedModel: ("averages weights", lambda average: version(average.n_averaged)),
    GradScaler: ("scales losses", lambda scaler: scaler.state_dict()),
}
"""What each does, and how far it has come."""


class Unprepared(Listener):
    """Looks out for them.

    Args:
        state: all that belongs to the run.
        trains: whether an optimizer has parameters of prepared models.
        scales_loss: whether gradients are unscaled, for prepared optimizers.
        speaks: whether to tell the user. (Of several ranks one does, and none where no checkpoints are written.)
    """

    def __init__(self, state: RunState, trains: Callable[[Optimizer], bool], *, scales_loss: bool, speaks: bool) -> None:
        self._state = state
        self._trains = trains
        self._scales_loss = scales_loss
        self._speaks = speaks
        self._has_looked = False
        self._resting: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """Schedules, averages and scalers that have not acted since they were found, and how far each had come."""
        self._judged: WeakSet[Optimizer] = WeakSet()

    def begin_step(self, step: int) -> None:
        """See Listener."""
        if self._speaks and not self._has_looked:
            self._has_looked = True  # once: it takes some 80 ms
            # isinstance() would take ten times as long, and ask proxies.
            kinds = _with_subclasses(*_KINDS)
            for thing in [one for one in gc.get_objects() if type(one) in kinds]:
                self._resting[thing] = _progress(thing)

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """See Listener.

        Raises:
            UsageError: its gradients may be scaled, or have overflowed.
        """
        if optimizer in self._judged:
            return
        self._judged.add(optimizer)
        name = type(optimizer).__name__
        if self._scales_loss and id(optimizer) not in _ids_in(self._prepared):
            raise UsageError(
                f"{name}.step(): this optimizer was not given to team.prepare(), and the run scales its losses: gradients are "
                "unscaled, and left out after an overflow, for prepared optimizers alone. Prepare it together with its model."
            )
        if not self._is_kept(optimizer):
            self._tell(f"{name} acts on prepared parameters")

    def end_step(self, step: int, num_samples: int) -> None:
        """See Listener."""
        if not self._resting:
            return
        moved = [thing for thing, before in self._resting.items() if _progress(thing) != before]
        for thing in moved:
            del self._resting[thing]
            optimizer = getattr(thing, "optimizer", None)  # a schedule's
            acts = optimizer is None or self._trains(optimizer)
            is_part = id(thing) in _ids_in([_parts(other) for other in moved])
            if acts and not is_part and not self._is_kept(thing):
                self._tell(f"{type(thing).__name__} {_what(thing)}")

    def _is_kept(self, thing: Any) -> bool:
        registered = [content.target for content in self._state.registered.values()]
        return id(thing) in _ids_in([*self._prepared, *registered])

    @property
    def _prepared(self) -> list[Any]:
        return [content.target for content in self._state.objects]

    def _tell(self, what: str) -> None:
        if self._speaks:
            say(
                f"WARNING: {what}, and was given neither to team.prepare() nor to team.register(): its state is in no "
                "checkpoint, so the run would have another answer if it were interrupted and resumed. Prepare it with the "
                "others, or register it: team.register(name, it)."
            )


def _with_subclasses(*kinds: type) -> set[type]:
    return set(kinds).union(*(_with_subclasses(*kind.__subclasses__()) for kind in kinds))


def _progress(thing: Any) -> Any:
    return next(progress for kind, (_, progress) in _KINDS.items() if isinstance(thing, kind))(thing)


def _what(thing: Any) -> str:
    return next(what for kind, (what, _) in _KINDS.items() if isinstance(thing, kind))


def _parts(thing: Any) -> Iterable[Any]:
    """What an object holds. The optimizer of a schedule is none of its parts: it is not in the schedule's state."""
    if isinstance(thing, (list, tuple)):
        return thing
    parts = thing if isinstance(thing, Mapping) else getattr(thing, "__dict__", {})
    return [part for part in parts.values() if not (isinstance(thing, LRScheduler) and isinstance(part, Optimizer))]


def _ids_in(things: Iterable[Any]) -> set[int]:
    """The ids of these, and of what they are made of: the schedules in a SequentialLR, say, or in an object of the script's."""
    found, level = set[int](), list(things)
    for _ in range(4):
        found.update(map(id, level))
        level = [part for thing in level for part in _parts(thing)]
    return found
