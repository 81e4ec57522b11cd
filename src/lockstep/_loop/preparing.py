"""The implementation of ``team.prepare``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import amp, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._base.errors import UsageError
from lockstep._data.assignment import ShardAssignment
from lockstep._data.fetch import set_workers
from lockstep._data.loader import PreparedLoader
from lockstep._listener import Listener
from lockstep._loop.loop import Loop
from lockstep._prepare.checks import check_model, check_optimizers, check_placed, describe, is_loader, preparing_order
from lockstep._prepare.guarded_methods import average_parts, idle_when, keep_dtypes, refuse_inside
from lockstep._prepare.guards import ShardGuards
from lockstep._prepare.model import wrap_model
from lockstep._prepare.model_precision import ModelPrecision, check_scaler, fit_optimizer
from lockstep._prepare.precision import find_precision
from lockstep._prepare.remap import remap
from lockstep._prepare.trained import TrainedObjects
from lockstep._prepare.unprepared import forget_gradients
from lockstep._state.recovery.run_state import RunState
from lockstep._sync.protocol import Strategy
from lockstep._world.comm.agreement import compare_ranks
from lockstep._world.comm.collectives import Collectives
from lockstep._world.devices import move

Kept = nn.Module | Optimizer | LRScheduler | amp.GradScaler
"""Types that ``prepare`` returns unchanged."""
A = TypeVar("A", bound=Kept)
B = TypeVar("B", bound=Kept)
C = TypeVar("C", bound=Kept)
D = TypeVar("D", bound=Kept)


class Preparation:
    """The preparation of objects, which adds their state to the run's.

    Args:
        config: the run's settings, with every default resolved.
        devices: the devices of this process.
        assignment: gives this process's shard assignment for a loader, by the loader's number.
        strategy: synchronizes the gradients of prepared models.
        loop: drives the prepared loaders.
        collectives: over all ranks.
        trained: what was prepared so far; prepared objects are added.
        guards: of what is trained.
        state: the run's state; prepared objects are added.
        listener: notified of what is prepared.
    """

    def __init__(
        self,
        config: RunConfig,
        devices: Sequence[torch.device],
        assignment: Callable[[int], ShardAssignment],
        strategy: Strategy,
        loop: Loop,
        collectives: Collectives,
        trained: TrainedObjects,
        guards: ShardGuards,
        state: RunState,
        listener: Listener,
    ) -> None:
        self._listener = listener
        self._config = config
        self._precision = find_precision(config.precision)
        self._device = devices[0]
        is_split = len(devices) > 1 and STRATEGIES[config.strategy].devices == "several"
        self._model_devices = devices if is_split else ()
        """The devices on which the script places parts of its models; empty: models are moved to
        the single device."""
        self._assign = assignment
        self._strategy = strategy
        self._loop = loop
        self._collectives = collectives
        self._trained, self._guards = trained, guards
        self._state = state
        self._prepared: dict[int, tuple[Any, Any]] = {}
        """The prepared objects and their replacements, by ``id``: each with its replacement. (Kept:
        an id is unique only among living objects.)"""

    def prepare(self, objects: Sequence[Any]) -> list[Any]:
        """Returns the prepared objects in the order given. Every rank must call it. See
        ``Team.prepare``."""
        self._check(objects)
        given, new = objects, {id(item): item for item in objects if id(item) not in self._prepared}
        objects = list(new.values())
        batches = [item for item in objects if is_loader(item)]
        first = len(self._state.loaders) + 1
        loaders = {id(item): self._make_loader(item, number) for number, item in enumerate(batches, first)}
        again = [f"object {number}: prepared before" for number, item in enumerate(given, 1) if id(item) not in new]
        # Compared before anything is prepared: preparing a model broadcasts it, which would hang or
        # mix up parameters if ranks prepare different objects.
        lines = [*describe(objects, loaders, self._model_devices), *again]
        compare_ranks("objects to prepare", lines, self._collectives)
        # Models first: an optimizer's parameters may be replaced as its model is prepared.
        results: dict[int, Any] = {}
        for item in sorted(objects, key=preparing_order):
            results[id(item)] = loaders[id(item)] if id(item) in loaders else self._prepare_one(item)
        for item in objects:
            result = results[id(item)]
            self._prepared[id(item)] = item, result
            self._prepared[id(result)] = result, result
        self._state.loaders += loaders.values()
        return [self._prepared[id(item)][1] for item in given]

    def _check(self, objects: Sequence[Any]) -> None:
        if not objects:
            raise UsageError(
                "prepare() needs at least one argument: a model, optimizer, schedule or training loader.",
                code="nothing-to-prepare",
            )
        for item in objects:
            if isinstance(item, nn.Module) and not isinstance(item, AveragedModel) and id(item) not in self._prepared:
                check_model(
                    item,
                    num_shards=self._loop.phases.num_shards,
                    world_size=self._collectives.size,
                    on_cpu=self._device.type == "cpu",
                    is_exact=STRATEGIES[self._config.strategy].promises_bits,
                )
                if self._model_devices:
                    check_placed(item, self._model_devices)
        check_optimizers(objects, {*self._trained.parameters, *self._strategy.replaced})

    def _prepare_one(self, item: Any) -> Any:
        if isinstance(item, AveragedModel):
            self._prepare_average(item)
        elif isinstance(item, nn.Module):
            return self._prepare_model(item)
        elif isinstance(item, Optimizer):
            remap(item, self._strategy.replaced)
            fit_optimizer(item, self._precision)
            self._trained.add_optimizer(item)
            refuse_inside(item, ("zero_grad",), self._loop.phases.check_zero_grad)
        elif isinstance(item, amp.GradScaler):
            check_scaler(self._precision)
            refuse_inside(item, ("unscale_", "step", "update"), self._loop.phases.check_scaler)
        elif isinstance(item, LRScheduler):
            self._trained.schedules.append(item)
            idle_when(item, "step", self._stands_still)
        self.keep(item)
        return item

    def _stands_still(self) -> bool:
        """Whether a step of a schedule, which a single shard may take, does not count."""
        return self._loop.resumption.is_catching_up or self._loop.phases.is_dry_run

    def _prepare_model(self, model: nn.Module) -> Any:
        forget_gradients(model)
        if not self._strategy.forward_is_collective:  # a sharded model may be too large for one GPU
            self._move(model)
        # A loss module with buffers only computes in float32, as it would if it were not prepared.
        precision = find_precision("32-true") if next(model.parameters(), None) is None else self._precision
        model_precision = ModelPrecision(model, precision, self._device)
        forward = self._strategy.attach(model)
        self._trained.add_model(model, model_precision)
        self._guards.add_model(model)
        self.keep(model)
        return wrap_model(model, forward, model_precision, self._loop.phases.check_zero_grad)

    def _prepare_average(self, average: AveragedModel) -> None:
        if not self._strategy.forward_is_collective:
            self._move(average)
        for tensor in (*average.parameters(), *average.buffers()):
            tensor.data.copy_(self._collectives.broadcast(tensor))
        keep_dtypes(average)
        if self._strategy.forward_is_collective:
            self._strategy.shard_parameters(average.module)
            average_parts(average)
        refuse_inside(average, ("update_parameters",), self._loop.phases.check_outside)
        idle_when(average, "update_parameters", lambda: self._loop.resumption.is_catching_up)

    def _move(self, model: nn.Module) -> None:
        if not self._model_devices:
            self._strategy.replaced.update(move(model, self._device))

    def _make_loader(self, batches: Iterable[Any], number: int) -> PreparedLoader:
        set_workers(batches, self._config.workers)
        self._listener.prepared_loader(batches)
        return PreparedLoader(batches, self._assign(number), self._loop, self._device)

    def keep(self, item: Any) -> None:
        """Adds an object's state to the run's."""
        self._state.keep(item)
        self._listener.prepared(item)
