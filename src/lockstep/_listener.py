"""Listeners: notified of what is prepared, each pass over a loader, its steps, their phases, and
the shards of each phase."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from types import FunctionType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lockstep._plan.shards import MicroBatch


class Stage(enum.IntEnum):
    """When a listener is notified of an event, among all. Within a stage the engine's own come
    first, then the listeners of instruments, in the order in which they were added."""

    EARLY = 1
    """Before anything of a step is recorded: it may still be refused."""
    NORMAL = 2
    """While values are logged."""
    LATE = 3
    """After everything of a step is recorded and shown."""


class Listener:
    """Base class of objects that the loop notifies, with methods that do nothing. Calls come in
    this order:

    ``begin_pass``, then for each step ``begin_step``; for each of its phases ``begin_phase``, each
    shard's micro-batches (``begin_shard``, ``received``, ``before_backward``, ``after_backward``,
    ``end_shard``) and ``end_phase``; ``end_step`` and ``agreed``, or ``abandon_step``; finally
    ``end_pass``.
    ``flush`` comes between passes, and before a checkpoint is saved within one; ``prepared``,
    ``prepared_loader``, ``made_loader``, ``before_optimizer``, ``before_other_optimizer`` and
    ``evaluated`` when the script asks for it; ``end_run`` is the last.

    Every rank is notified of the same passes, steps and phases. Only ``made_loader``, ``agreed``
    and ``flush`` may communicate."""

    stage = Stage.NORMAL
    """The stage at which it is notified, among all listeners."""

    def prepared(self, item: Any) -> None:
        """A model, optimizer, schedule, average or scaler belongs to the run from now on: the
        script's own object."""

    def prepared_loader(self, batches: Iterable[Any]) -> None:
        """A training loader is about to be made of these batches: the script's own ``DataLoader``,
        or other iterable."""

    def made_loader(self, loader: Any, number: int) -> None:
        """A training loader was made: a ``PreparedLoader``, the script's first of which is number
        1."""

    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        """A pass of ``num_steps`` steps begins, ``done`` of them taken before the run was
        interrupted. None: unknown.

        ``epoch``: from 0, as ``team.epochs`` counts them; outside of it, where ``num_epochs`` is
        None, the earlier passes over this loader.
        """

    def begin_step(self, step: int) -> None:
        """A step begins."""

    def begin_phase(self, phase: int) -> None:
        """A phase begins; the first of a step is number 0."""

    def begin_shard(self, micro: MicroBatch) -> None:
        """A micro-batch of this process begins."""

    def received(self, micro: MicroBatch, data: Any) -> None:
        """The script is about to receive these samples, which are still where they were fetched: on
        the device it gets copies. Called once per loader where two are run side by side."""

    def before_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        """A backward pass is about to run; ``weight`` is what the script gave."""

    def after_backward(self) -> None:
        """A backward pass has run."""

    def end_shard(self) -> None:
        """The micro-batch ended."""

    def end_phase(self, phase: int) -> None:
        """The phase ended: gradients and buffers are synchronized, and the same on every
        rank."""

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer of prepared parameters, itself prepared or not, is about to step, within a
        step and outside of its phases."""

    def before_other_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer without parameters of prepared models is about to step, within a step and
        outside of its phases."""

    def end_step(self, step: int, num_samples: int) -> None:
        """A step of ``num_samples`` samples, over all ranks, was taken. Local."""

    def agreed(self, step: int) -> None:
        """The step ended on every rank, and what the ranks had to agree on after it is settled
        (``_loop/between.py``). Here they may communicate."""

    def abandon_step(self) -> None:
        """The current step is discarded. Local."""

    def end_pass(self, step: int, *, exhausted: bool) -> None:
        """The pass ended after this step of the run, early unless ``exhausted``. Local."""

    def flush(self) -> None:
        """Complete pending work: between passes, and before a checkpoint is saved within one.
        Called on every rank at the same point."""

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """An evaluation after this step has its results."""

    def end_run(self, step: int, *, failed: bool) -> None:
        """The script finished after this step."""


EVENTS = tuple(name for name, plain in vars(Listener).items() if isinstance(plain, FunctionType))
"""The names of a listener's methods."""


class Calls:
    """The methods that listeners override, for each event of a step, in the order of the calls."""

    # The loop calls them directly, `for notify in on.begin_shard: notify(micro)`: otherwise most of
    # a small model's step would be spent on passing calls on.

    begin_step: tuple[Callable[[int], None], ...] = ()
    begin_phase: tuple[Callable[[int], None], ...] = ()
    begin_shard: tuple[Callable[[MicroBatch], None], ...] = ()
    received: tuple[Callable[[MicroBatch, Any], None], ...] = ()
    before_backward: tuple[Callable[[Tensor, float | Tensor | None], None], ...] = ()
    after_backward: tuple[Callable[[], None], ...] = ()
    end_shard: tuple[Callable[[], None], ...] = ()
    end_phase: tuple[Callable[[int], None], ...] = ()
    before_optimizer: tuple[Callable[[Optimizer], None], ...] = ()
    before_other_optimizer: tuple[Callable[[Optimizer], None], ...] = ()
    end_step: tuple[Callable[[int, int], None], ...] = ()
    agreed: tuple[Callable[[int], None], ...] = ()


class Listeners(Listener):
    """A listener that notifies several listeners, by stage."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners: list[Listener] = []
        self.on = Calls()
        """The calls for each event of a step."""
        self.add(listeners)

    def add(self, listeners: Iterable[Listener]) -> None:
        """Adds listeners, which are notified after the present ones of their stages."""
        self._listeners = sorted([*self._listeners, *listeners], key=attrgetter("stage"))
        for name in EVENTS:
            plain = vars(Listener)[name]
            methods = [getattr(item, name) for item in self._listeners]
            overriding = tuple(method for method in methods if getattr(method, "__func__", None) is not plain)
            if hasattr(Calls, name):
                setattr(self.on, name, overriding)
            setattr(self, name, partial(_call_all, overriding))


def _call_all(methods: tuple[Callable[..., None], ...], *args: Any, **kwargs: Any) -> None:
    for method in methods:
        method(*args, **kwargs)
