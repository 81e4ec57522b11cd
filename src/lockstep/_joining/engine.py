"""Assembles the engine of one process. Only this module knows all of its components."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._base.escape_control import escape_control
from lockstep._base.stopping import StopWatch, say
from lockstep._data import shared
from lockstep._data.assignment import ShardAssignment
from lockstep._data.evaluation_numbers import Evaluations
from lockstep._data.loader import PreparedLoader
from lockstep._data.streams import Purpose, draw_on, preserve_rng, reseed
from lockstep._events.measure.first_step_memory import FirstStepMemory
from lockstep._events.measure.log import MetricLog
from lockstep._events.measure.nan_watch import NanWatch
from lockstep._events.measure.passes import PassMeter
from lockstep._events.measure.progress import choose_display
from lockstep._events.measure.step_clock import (
    LoaderTimer,
    LoggingTimer,
    OverlapTimer,
    StepClock,
)
from lockstep._events.measure.trackers import RunInfo, Trackers, trackers_for
from lockstep._events.writer import EventWriter
from lockstep._joining.instrument import Instrument, Run
from lockstep._joining.startup.announcement import Announcement, start_event
from lockstep._joining.startup.refused_layers import RefusedLayers
from lockstep._joining.startup.script_seed import ScriptSeed
from lockstep._joining.startup.split_remarks import SplitRemarks
from lockstep._listener import Listener, Listeners
from lockstep._loop.at_exit import AtExit
from lockstep._loop.balance import Balance, may_balance
from lockstep._loop.between import Agreement, Topic
from lockstep._loop.exchange import Peers
from lockstep._loop.loop import Loop
from lockstep._loop.meeting import Meetings
from lockstep._loop.phase import RunParts
from lockstep._loop.phases import Phases
from lockstep._loop.preparing import Preparation
from lockstep._plan.blocks import Blocks, even_blocks
from lockstep._plan.rounds import equal_machines
from lockstep._prepare.guards import ShardGuards
from lockstep._prepare.precision import find_precision
from lockstep._prepare.scaling import LossScaling
from lockstep._prepare.trained import TrainedObjects
from lockstep._state.checkpoint.store import Store
from lockstep._state.recovery.divergence import DivergenceCheck
from lockstep._state.recovery.fingerprint import Fingerprint
from lockstep._state.recovery.resume_warnings import ResumeWarnings
from lockstep._state.recovery.resuming import Checkpoint, Restorer
from lockstep._state.recovery.run_state import RunState
from lockstep._state.recovery.saving import Saver
from lockstep._state.recovery.unsaved_objects import UnsavedObjects
from lockstep._state.rundir.fixed_settings import FixedSettings
from lockstep._state.rundir.lock import RunLock
from lockstep._sync.table import make_strategy
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.group import CHANNELS_NOTICE, Transport, close_group, default_group, group_store
from lockstep._world.comm.raw_collectives import RawCollectives
from lockstep._world.environment import World
from lockstep._world.kernels import DeterministicKernels, needs_deterministic_kernels, notice


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The run that a team belongs to, as ``join`` has agreed on it."""

    run_dir: Path
    """The run directory."""
    fixed_settings: FixedSettings
    """The settings that cannot change during the run."""
    checkpoint: Checkpoint | None
    """The checkpoint to resume from; None: start at step 0."""
    lock: RunLock | None
    """The lock of the run directory, on rank 0; None on other ranks."""
    launch_id: str
    """The identifier of this launch, the same on every rank."""
    is_new: bool
    """Whether no launch has used the run directory before. Valid on rank 0 only."""
    shards_are_set: bool
    """Whether the script or the command line sets V. If not, V is the number of processes of the
    run's first launch."""
    notices: Sequence[str] = ()
    """Lines that rank 0 prints at the start."""
    script_settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that the script passes to ``join``, for ``instrument.Run``."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """The requests of the lockstep command that started this run, by instrument, for
    ``instrument.Run``; empty: the user started the run."""
    on_terminal: bool = False
    """Whether the output goes to a terminal."""


class Engine:
    """All components that run steps in this process, created and connected.

    Args:
        config: the run's settings, with every default resolved.
        transport: the process group's backend and network interface.
        instruments: sources of more listeners.
    """

    def __init__(
        self,
        config: RunConfig,
        world: World,
        devices: tuple[torch.device, ...],
        transport: Transport,
        context: RunContext,
        instruments: Sequence[Instrument] = (),
    ) -> None:
        fixed = context.fixed_settings
        self.config, self.world, self.devices, self.context = config, world, devices, context
        self.is_main = world.rank == 0
        torch.set_num_threads(fixed.threads)
        draw_on(devices)
        reseed(fixed.seed, Purpose.START)
        # Without the guard that checks where the script calls a collective: the engine calls its
        # own only at points that all ranks reach.
        self.collectives = Collectives(default_group(), transport)
        self.machines = [world.host] * world.world_size
        if world.num_nodes > 1:
            self.machines = self.collectives.all_gather_plain(world.host)
        self.transport = dataclasses.replace(transport, ranks_per_machine=equal_machines(self.machines))
        self._started = start_event(config, world, devices[0], transport, self.machines)
        # In this order: the loop is given the saver, and listeners the loop's clock and phases.
        self._build_records()
        self._build_loop()
        self._build_listeners()
        # From here on, a failure must also restore PyTorch's setting, as `close` does.
        is_needed = needs_deterministic_kernels(config, devices[0])
        self._kernels = DeterministicKernels(config.nondeterministic) if is_needed else None
        try:
            self._begin(instruments)
        except BaseException:
            self.close(0, failed=True)
            raise

    def _build_records(self) -> None:
        """Creates what is kept of a run: its event log, its state, and its checkpoints."""
        config, context, checkpoint = self.config, self.context, self.context.checkpoint
        self.stop_watch = StopWatch(speaks=self.is_main)
        self.trackers = self._open_trackers() if self.is_main else Trackers()
        self.events = EventWriter(context.run_dir if self.is_main else None)
        self.state = RunState(self.devices)
        self.saver = Saver(
            Store(context.run_dir),
            config,
            context.launch_id,
            context.fixed_settings,
            self.state,
            self.collectives,
            self.events,
            self.stop_watch,
        )
        self.restorer = None
        if checkpoint is not None:
            self.restorer = Restorer(checkpoint, self.state, config.allow)
        self.fingerprint = Fingerprint(self.state)
        self.divergence = DivergenceCheck(self.fingerprint, self.collectives)

    def _build_loop(self) -> None:
        """Creates the components that run steps."""
        config, collectives, fixed = self.config, self.collectives, self.context.fixed_settings
        self.precision = find_precision(config.precision)
        scaling = LossScaling(self.devices[0].type) if self.precision.scales_loss else None
        self.strategy = make_strategy(config.strategy, config, fixed.shards, self.transport, self.devices)
        self.clock = StepClock(self.saver, self.devices[0])
        self.balance = None
        if may_balance(config, self.world.world_size, fixed.shards, self.devices[0].type):
            registered = self.state.registered.values
            self.balance = Balance(self.world.world_size, fixed.shards, self.clock, self.events, registered)
        self.trained = TrainedObjects(scaling)
        self.guards = ShardGuards(self.trained, fixed.shards, is_plain=self.strategy.is_plain)
        self.listeners = Listeners()
        parts = RunParts(
            fixed.seed,
            fixed.shards,
            self.strategy,
            Peers(collectives, config.accumulate, self.balance or self.clock),
            self.trained,
            self.guards,
            self.listeners.on,
            self.clock.mark,
        )
        gather = functools.partial(shared.gather, collectives=collectives, device=self.devices[0])
        self.phases = Phases(parts, self.listeners, gather)
        self.phases.may_warn_of_loader = self.is_main and self.world.world_size > 1
        self.meetings = Meetings(self.world.world_size, group_store(), config.timeout_s)
        self.log = MetricLog(collectives, config.log_every, lambda row: self.record("step", *row))
        # In this order: a move is put into force, states that differ are refused before anything of
        # the step is recorded, and a checkpoint is decided on. A single process has only that.
        topics: list[Topic] = [] if self.balance is None else [self.balance]
        topics += [self.divergence, self.log, self.saver] if collectives.size > 1 else [self.saver]
        self.loop = Loop(
            self.phases,
            self.saver,
            self.divergence,
            self.restorer,
            Agreement(collectives, topics, self.clock.mark),
            self.listeners,
            self.meetings,
            is_main=self.is_main,
        )
        self.preparation = Preparation(
            config,
            self.devices,
            self.assignment,
            self.strategy,
            self.loop,
            collectives,
            self.trained,
            self.guards,
            self.state,
            self.listeners,
        )
        self.evaluated = Evaluations(functools.partial(self.assignment, 0), config.workers, self.state.saved_ids)
        self._script_seed = ScriptSeed(collectives, self.state, self.phases, self.restorer)
        self._optimizer_hooks = (
            register_optimizer_step_pre_hook(self.phases.before_optimizer),
            register_optimizer_step_post_hook(self.clock.after_optimizer),
        )

    def _build_listeners(self) -> None:
        """Registers the engine's listeners; within a stage, they are notified in this order."""
        config, world, context, clock = self.config, self.world, self.context, self.clock
        warns = self.is_main and config.interval != "off"
        # ``RawCollectives`` refuses the script's own collectives inside batch.shards. It could not
        # distinguish them from the collectives that FSDP makes in a forward pass.
        is_forward_collective = self.strategy.forward_is_collective
        self.at_exit = AtExit()
        # By a function, since each needs the other: `passes` prints only if something is displayed.
        self._display = choose_display(
            config.progress, lambda: self.passes.progress, is_main=self.is_main, on_terminal=context.on_terminal
        )
        self.passes = PassMeter(self.events, self.collectives, clock.take, speaks=self._display is not None)
        # The timers are where the time that they charge ends: LoaderTimer is the first of all, and
        # LoggingTimer the first of the last stage. `passes` precedes the display, which
        # shows what it has counted, and `at_exit` is the last: by then trackers are open.
        candidates: list[Listener | None] = [
            LoaderTimer(clock),
            self.balance,
            UnsavedObjects(self.state, self.trained.trains, scales_loss=self.precision.scales_loss, may_warn=warns),
            ResumeWarnings(self.loop.resumption, may_warn=warns),
            RawCollectives(self.collectives)
            if STRATEGIES[config.strategy].promises_bits and not is_forward_collective
            else None,
            NanWatch(config.on_nan, world.rank, config.log_every, self.phases.position),
            self.log,
            self.trackers,
            self._announcement() if self.is_main else None,
            RefusedLayers() if self.is_main and needs_deterministic_kernels(config, self.devices[0]) else None,
            self.saver,
            LoggingTimer(clock),
            self.passes,
            self._display,
            clock,
            OverlapTimer(clock, self.strategy) if world.world_size > 1 else None,
            self._split_remarks() if self.is_main and not context.requests else None,
            FirstStepMemory(self.events, self.devices[0]) if self.is_main and self.devices[0].type != "cpu" else None,
            self.at_exit,
        ]
        self.listeners.add(listener for listener in candidates if listener is not None)

    def _begin(self, instruments: Sequence[Instrument]) -> None:
        """Writes the beginning of the run, and registers the listeners of instruments."""
        checkpoint, context = self.context.checkpoint, self.context
        self.events.write("start", **self._started, inode=context.run_dir.stat().st_ino)
        if checkpoint is not None:
            self.events.write("resume", step=checkpoint.manifest.step, checkpoint=checkpoint.path.name)
        elif not context.is_new:
            # The launch starts over, so readers must drop the steps of earlier launches.
            self.events.write("resume", step=0, checkpoint=None)
        notices, run = [*context.notices], self._as_run()
        if self._kernels is not None:
            notices.append(notice(self.config.nondeterministic))
        if self.transport.limits_channels:
            notices.append(CHANNELS_NOTICE)
        for instrument in instruments:
            self.listeners.add(instrument.listeners(run))
            notices += instrument.notices(run) if self.is_main else ()
        for line in notices if self.is_main and not context.requests else ():
            print(escape_control(f"lockstep: {line}", has_lines=True), flush=True)
        if self.trained.scaling is not None:
            self.preparation.keep(self.trained.scaling)

    def _as_run(self) -> Run:
        context, checkpoint = self.context, self.context.checkpoint
        return Run(
            config=self.config,
            world=self.world,
            devices=self.devices,
            run_dir=context.run_dir,
            fixed_settings=context.fixed_settings,
            launch_id=context.launch_id,
            after=0 if checkpoint is None else checkpoint.manifest.step,
            script_settings=context.script_settings,
            requests=context.requests,
            machines=tuple(self.machines),
            collectives=self.collectives,
            events=self.events,
            phases=self.phases,
            state=self.state,
            strategy=self.strategy,
            saver=self.saver,
            fingerprint=self.fingerprint,
            stop_watch=self.stop_watch,
            clock=self.clock,
            passes=self.passes,
            meetings=self.meetings,
            has_deterministic_kernels=self._kernels is not None,
        )

    def _open_trackers(self) -> Trackers:
        config, context, checkpoint = self.config, self.context, self.context.checkpoint
        script = Path(sys.argv[0] if sys.argv else "").stem
        # One dict for both: `Trackers` fills it while objects are prepared, and a tracker reads it
        # when opened.
        hyperparameters: dict[str, Any] = {}
        about = RunInfo(
            run_dir=context.run_dir,
            project=script if script not in ("", "-c", "__main__") else "lockstep",
            settings={**self._started, "args": shlex.join(sys.argv[1:]), "birth": context.fixed_settings.as_json()},
            hyperparameters=hyperparameters,
            is_again=not context.is_new,
            aside=preserve_rng,
        )
        resumed_from = None if checkpoint is None else checkpoint.manifest.step
        return Trackers(trackers_for(config.track, about, resumed_from), hyperparameters)

    def _announcement(self) -> Announcement:
        context = self.context
        given = context.shards_are_set or not context.is_new
        return Announcement(self.config, self.world, self.devices, self.transport, context.run_dir, shards_are_set=given)

    def _split_remarks(self) -> SplitRemarks | None:
        num_shards = self.context.fixed_settings.shards
        return None if num_shards == 1 else SplitRemarks(num_shards, say)

    def record(self, kind: str, epoch: int, step: int, values: dict[str, float], apart: Sequence[str] = ()) -> None:
        """Writes the values of a ``step``, or the results of an evaluation (``evaluate``), to the
        event log and the trackers. ``apart``: the names of values that were logged outside of the
        step."""
        if values:
            self.events.write(kind, epoch=epoch, step=step, values=values, **({"apart": list(apart)} if apart else {}))
            self.trackers.write(kind, step, values, apart)
        if kind == "step" and self._display is not None:
            self._display.values(values)

    def prepare(self, objects: Sequence[Any]) -> list[Any]:
        """Prepares objects, and compares what was prepared so far with the checkpoint to resume
        from. Every rank must call it."""
        # First, since the loaders that are prepared below derive their streams from the run's seed.
        self._script_seed.take()
        prepared = self.preparation.prepare(objects)
        if self.restorer is not None and not self.restorer.is_done:
            self.restorer.check_objects()
            self.restorer.check_loaders()
        for loader in prepared:
            if isinstance(loader, PreparedLoader):
                self.phases.has_loader = True
                self.listeners.made_loader(loader, self.state.loaders.index(loader) + 1)
                # From the first training loader on: before, there is nothing to save, and a signal
                # ends the process.
                self.stop_watch.begin()
        return prepared

    def assignment(self, loader: int) -> ShardAssignment:
        """Returns this process's shard assignment for a loader, by its index."""
        return ShardAssignment(
            rank=self.world.rank,
            world_size=self.world.world_size,
            num_shards=self.phases.num_shards,
            seed=self.phases.parts.seed,
            loader=loader,
            accumulate=self.config.accumulate,
            allows_other_data="data" in self.config.allow,
            moves=None if self.balance is None else self.balance.moves,
        )

    def blocks(self) -> Blocks:
        """Returns the shards of all ranks in the current step."""
        if self.balance is not None:
            return self.balance.moves.in_force
        return even_blocks(self.world.world_size, self.phases.num_shards)

    def close(self, step: int, *, failed: bool) -> None:
        """Releases all resources. Local."""
        for hook in self._optimizer_hooks:
            hook.remove()
        try:
            self.listeners.end_run(step, failed=failed)
        finally:
            self.events.close()
            self.trackers.close(failed=failed)
            if self.context.lock is not None:
                # After the event log was closed: another launch may write there as soon as it has
                # the lock.
                self.context.lock.release()
            self.meetings.close()
            self.strategy.close()
            # Before the group is closed, since its threads end with the last reference to it.
            self.collectives.release()
            if self._kernels is not None:
                self._kernels.put_back()
            close_group(failed=failed)
