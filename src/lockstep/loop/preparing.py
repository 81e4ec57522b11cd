"""What ``team.prepare`` does: the script's objects take part in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import amp, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep.comm.agreement import compare_ranks
from lockstep.comm.collectives import Collectives
from lockstep.config import STRATEGIES, RunConfig
from lockstep.data.assignment import ShardAssignment
from lockstep.data.batches import length_of
from lockstep.data.fetch import set_workers
from lockstep.data.loader import PreparedLoader
from lockstep.errors import UsageError
from lockstep.loop.loop import Loop
from lockstep.precision import find_precision
from lockstep.prepare.checks import check_model, check_optimizers, check_placed, describe, is_loader, preparing_order
from lockstep.prepare.model import stand_in
from lockstep.prepare.model_precision import ModelPrecision, check_scaler, fit_optimizer
from lockstep.prepare.remap import remap
from lockstep.prepare.watched import Watched, idle_in_replay, keep_formats, refuse_inside
from lockstep.recovery.run_state import RunState
from lockstep.sync.protocol import Sync
from lockstep.sync.table import promises_bits

if TYPE_CHECKING:  # imported where a run is traced
    from lockstep.measure.recorder import Recorder

Kept = nn.Module | Optimizer | LRScheduler | amp.GradScaler
"""What stays of its own type when it is prepared."""
A = TypeVar("A", bound=Kept)
B = TypeVar("B", bound=Kept)
C = TypeVar("C", bound=Kept)
D = TypeVar("D", bound=Kept)


class Preparation:
    """Brings objects into the run, and keeps those whose state belongs to it.

    Args:
        config: the settings of the run, definite.
        devices: of this process.
        assignment: what is this process's of a loader, by the loader's number.
        sync: how gradients meet.
        loop: drives loaders, and says what may act.
        collectives: of all ranks.
        watched: the objects that steps act on; more are put in.
        state: of the run: what is prepared becomes part of it.
    """

    def __init__(
        self,
        config: RunConfig,
        devices: Sequence[torch.device],
        assignment: Callable[[int], ShardAssignment],
        sync: Sync,
        loop: Loop,
        collectives: Collectives,
        watched: Watched,
        state: RunState,
    ) -> None:
        self.recorder: Recorder | None = None
        """Of a trace."""
        self._config = config
        self._precision = find_precision(config.precision)
        self._device = devices[0]
        is_split = len(devices) > 1 and STRATEGIES[config.strategy].devices == "several"
        self._places = devices if is_split else ()
        """The devices that the script puts the parts of its models on; none: models are moved to the one there is."""
        self._assign = assignment
        self._sync = sync
        self._loop = loop
        self._collectives = collectives
        self._watched = watched
        self._state = state
        self._prepared: dict[int, Any] = {}

    @property
    def has_models(self) -> bool:
        """Whether there is something to train."""
        return bool(self._watched.parameters)

    def prepare(self, objects: Sequence[Any]) -> list[Any]:
        """What takes their places, in the same order. Every rank must call it. See ``Team.prepare``."""
        self._check(objects)
        batches = [thing for thing in objects if is_loader(thing)]
        first = len(self._state.loaders) + 1
        loaders = {id(thing): self._make_loader(thing, number) for number, thing in enumerate(batches, first)}
        compare_ranks("objects to prepare", describe(objects, loaders, self._places), self._collectives)
        results: dict[int, Any] = {}
        for thing in sorted(objects, key=preparing_order):
            results[id(thing)] = loaders[id(thing)] if id(thing) in loaders else self._prepare_one(thing)
        for thing in objects:
            self._prepared[id(thing)] = thing  # kept: an id is unique only among living objects
            self._prepared[id(results[id(thing)])] = results[id(thing)]
        self._state.loaders += loaders.values()
        return [results[id(thing)] for thing in objects]

    def _check(self, objects: Sequence[Any]) -> None:
        if not objects:
            raise UsageError("prepare() was given nothing: give it models, optimizers, schedules and training loaders")
        for position, thing in enumerate(objects):
            if id(thing) in self._prepared or any(thing is other for other in objects[:position]):
                raise UsageError(f"this {type(thing).__name__} is already prepared: prepare an object once")
        for thing in objects:
            if isinstance(thing, nn.Module) and not isinstance(thing, AveragedModel):
                check_model(
                    thing,
                    num_shards=self._loop.phases.num_shards,
                    world_size=self._collectives.size,
                    on_cpu=self._device.type == "cpu",
                    is_exact=promises_bits(self._config.strategy, shards_given=True),
                )
                if self._places:
                    check_placed(thing, self._places)
        check_optimizers(objects, {*self._watched.parameters, *self._sync.replaced})

    def _prepare_one(self, thing: Any) -> Any:
        if isinstance(thing, AveragedModel):
            self._prepare_average(thing)
        elif isinstance(thing, nn.Module):
            return self._prepare_model(thing)
        elif isinstance(thing, Optimizer):
            remap(thing, self._sync.replaced)
            fit_optimizer(thing, self._precision)
            self._watched.add_optimizer(thing)
            refuse_inside(thing, ("zero_grad",), self._loop.phases.check_outside)
        elif isinstance(thing, amp.GradScaler):
            check_scaler(self._precision)
            refuse_inside(thing, ("unscale_", "step", "update"), self._loop.phases.check_outside)
        elif isinstance(thing, LRScheduler):
            self._watched.add_schedule(thing)
            idle_in_replay(thing, "step", lambda: self._loop.is_replaying)
        self.keep(thing)
        return thing

    def _prepare_model(self, model: nn.Module) -> Any:
        if not self._sync.forward_is_collective:  # else it may be too large for one GPU as a whole
            self._move(model)
        model_precision = ModelPrecision(model, self._precision, self._device)
        forward = self._sync.attach(model)
        self._watched.add_model(model, model_precision)
        self.keep(model)
        return stand_in(model, forward, model_precision, self._loop.phases.check_outside)

    def _prepare_average(self, average: AveragedModel) -> None:
        if self._sync.forward_is_collective:
            raise UsageError(
                "an AveragedModel with strategy='fsdp': its weights are whole, and those of the model are dealt out to the "
                "processes. Leave it out, or use another strategy."
            )
        self._move(average)
        for tensor in (*average.parameters(), *average.buffers()):
            tensor.data.copy_(self._collectives.broadcast(tensor))
        keep_formats(average)
        refuse_inside(average, ("update_parameters",), self._loop.phases.check_outside)
        idle_in_replay(average, "update_parameters", lambda: self._loop.is_replaying)

    def _move(self, model: nn.Module) -> None:
        if not self._places:
            model.to(self._device)

    def _make_loader(self, batches: Iterable[Any], number: int) -> PreparedLoader:
        set_workers(batches, self._config.workers)
        if self.recorder is not None:
            self.recorder.watch_loader(batches, length_of(getattr(batches, "dataset", batches)))
        return PreparedLoader(batches, self._assign(number), self._loop, self._device)

    def keep(self, thing: Any) -> None:
        """Make an object's state part of the run's."""
        self._state.keep(thing)
        if self.recorder is not None:
            self.recorder.watch(thing)
