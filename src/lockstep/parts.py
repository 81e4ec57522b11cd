"""The parts of a run, assembled for this process: the only module that knows all of them."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lockstep.checkpoint.store import Store
from lockstep.comm.agreement import compare_ranks
from lockstep.comm.collectives import Collectives
from lockstep.comm.group import Transport, close_group, default_group
from lockstep.comm.raw_collectives import RawCollectives
from lockstep.config import RunConfig
from lockstep.data.assignment import ShardAssignment
from lockstep.data.evaluated import EvaluatedLoaders
from lockstep.data.loader import PreparedLoader
from lockstep.data.streams import Purpose, derive, draw_on, preserve_rng, reseed
from lockstep.interval import steps_of
from lockstep.listener import Listener, Listeners
from lockstep.loop.at_exit import AtExit
from lockstep.loop.ledger import Ledger
from lockstep.loop.loop import Loop
from lockstep.loop.phases import Phases
from lockstep.loop.preparing import Preparation
from lockstep.machine.cores import num_cores
from lockstep.machine.identity import shared_by
from lockstep.measure.journal import Journal
from lockstep.measure.log import MetricLog
from lockstep.measure.nan_watch import NanWatch
from lockstep.measure.passes import Meter
from lockstep.measure.progress import ProgressUpdater, choose_display
from lockstep.measure.step_clock import CHECKPOINT, LOGGING, SAVING, AuditTimer, LoaderTimer, PartTimer, StepClock
from lockstep.measure.step_counter import StepCounter
from lockstep.measure.trackers import Trackers, trackers_for
from lockstep.measure.wandb_like import RunInfo
from lockstep.precision import find_precision
from lockstep.prepare.scaling import LossScaling
from lockstep.prepare.watched import Watched
from lockstep.recovery.fingerprint import Fingerprint
from lockstep.recovery.held import HeldRun
from lockstep.recovery.journey import Journey
from lockstep.recovery.parted import PartedRanks
from lockstep.recovery.position import ScriptCursor
from lockstep.recovery.resuming import Checkpoint, Restorer
from lockstep.recovery.run_state import RunState
from lockstep.recovery.saving import Saver
from lockstep.recovery.unprepared import Unprepared
from lockstep.recovery.unrepeatable import Unrepeatable
from lockstep.rundir.birth import Birth
from lockstep.rundir.lock import RunLock
from lockstep.startup.allotment import misfits
from lockstep.startup.banner import chosen_shards, first_line, start_event
from lockstep.startup.split import SplitRemarks
from lockstep.stopping import StopWatch, end_stuck, say
from lockstep.sync.table import make_sync, promises_bits
from lockstep.tools.audit.opening import open_audit
from lockstep.tools.explain.black_box import box_path
from lockstep.tools.explain.loader_workers import LOADING
from lockstep.tools.explain.profiler import StepProfiler, profile_path
from lockstep.tools.explain.sampler import Sampler
from lockstep.tools.explain.slow_ranks import SlowRank, SlowRanks
from lockstep.tools.explain.slow_saving import OwnSaving
from lockstep.tools.explain.stuck import StuckWatch, limit_s
from lockstep.tools.replay.blame import SampleBySample
from lockstep.tools.replay.digests import is_due
from lockstep.tools.replay.opening import open_digests, open_replay
from lockstep.tools.replay.request import Request
from lockstep.tools.tune.probe import measure
from lockstep.tools.tune.session import open_session
from lockstep.tools.tune.tuned import Situation, Tuned
from lockstep.visible import visible
from lockstep.world import World


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The run that a team belongs to."""

    run_dir: Path
    birth: Birth
    checkpoint: Checkpoint | None
    """The checkpoint to resume from; None: start at step 0."""
    lock: RunLock | None
    """Held by rank 0; None on other ranks."""
    token: str
    """Identifies this launch; the same on every rank."""
    is_new: bool
    """Whether no launch has used the run directory before. Valid on rank 0 only."""
    shards_given: bool
    """Whether the script or the command line gave V. If not, it is the number of processes of the run's first launch."""
    notices: Sequence[str]
    """Lines that rank 0 prints at the start."""
    replay: Request | None = None
    """What to replay; None: this is a run."""
    tuning: tuple[Path, Situation] | None = None
    """The directory of ``lockstep tune``, and the situation that is measured; None: this is a run."""
    tuned: Tuned | None = None
    """A loader's settings as ``lockstep tune`` found them."""
    trackers: Mapping[str, Any] = field(default_factory=dict)
    """Objects that the script has given as ``track``, by name."""
    chosen: Collection[str] = ()
    """Settings that a trial has chosen, as the script gives none."""
    is_held: bool = False
    """See ``TrialSettings``."""


class Parts:
    """Builds the parts of a team and wires them together.

    Args:
        config: the run's settings, with every default resolved.
        world: this process's place among all processes.
        devices: those of this process.
        transport: the process group's backend and network interface.
        context: the run.
        on_terminal: whether the output goes to a terminal.
    """

    def __init__(
        self,
        config: RunConfig,
        world: World,
        devices: tuple[torch.device, ...],
        transport: Transport,
        context: RunContext,
        on_terminal: bool,
    ) -> None:
        assert config.shards is not None
        assert config.threads is not None
        assert config.seed is not None
        self.config, self.world, self.devices, self.transport, self.context = config, world, devices, transport, context
        torch.set_num_threads(config.threads)
        draw_on(devices)
        reseed(config.seed, Purpose.START)
        self._start_seed: int | None = torch.initial_seed()
        is_main, checkpoint = world.rank == 0, context.checkpoint
        # Unguarded: the loop issues its own collectives only at points that all ranks reach.
        self.collectives = Collectives(default_group(), transport)
        self.stop_watch = StopWatch(speaks=is_main)
        trackers = self._open_trackers() if is_main else Trackers()
        self.journal = Journal(context.run_dir if is_main else None, trackers)

        self.state = RunState()
        trace = [] if config.trace == "off" else self._open_trace()
        self.saver = Saver(
            Store(context.run_dir),
            config,
            context.token,
            context.birth,
            self.state,
            self.collectives,
            self.journal,
            self.stop_watch,
        )
        self.restorer = None
        if checkpoint is not None:
            self.restorer = Restorer(checkpoint=checkpoint, state=self.state, precision=config.precision, allow=config.allow)
        fingerprint = Fingerprint(self.state)
        parted = PartedRanks(fingerprint, self.collectives, functools.partial(is_due, every=config.journal_every))
        cursor = (
            ScriptCursor() if checkpoint is None else ScriptCursor(checkpoint.position, is_end=checkpoint.manifest.finished)
        )
        journey = Journey(cursor, self.restorer, self.saver, parted, is_main=is_main)

        self.precision = find_precision(config.precision)
        scaling = LossScaling(devices[0].type) if self.precision.scales_loss else None
        self.sync = make_sync(config.strategy, config, config.shards, transport, devices)
        is_audited = config.audit > 0 and config.trace == "off"
        watched = Watched(config.shards, scaling, is_plain=self.sync.is_plain, is_audited=is_audited)

        self.steps = steps = StepCounter()
        display = choose_display(config.progress, is_main=is_main, on_terminal=on_terminal, progress=steps.progress)

        def publish(epoch: int, step: int, values: dict[str, float]) -> None:
            self.journal.scalars("step", epoch, step, values)
            if display is not None:
                display.values(values)

        self.log = MetricLog(world.world_size, config.log_every, lambda row: publish(*row))
        watch = NanWatch(config.on_nan, world.rank, config.log_every, lambda: self.phases.position)
        warns = is_main and config.trace == "off" and config.interval != "off"
        slow_ranks = SlowRanks(may_judge=self.sync.times_forward, tell=self._say_slow)
        self.clock = StepClock(self.sync, functools.partial(getattr, self.saver, "held_s"), slow_ranks.add, devices[0])
        meter = Meter(self.journal, self.collectives, self.clock.take, display is not None)
        launch = context.token, 0 if checkpoint is None else checkpoint.manifest.step
        active: list[Listener | None] = [
            LoaderTimer(self.clock),
            parted if world.world_size > 1 else None,
            *open_digests(config, world, context.birth, launch, fingerprint, context.replay),
            Unprepared(self.state, watched.trains, scales_loss=self.precision.scales_loss, speaks=warns),
            Unrepeatable(lambda: journey.is_in_epochs, speaks=warns),
            watched.strangers,
            RawCollectives(self.collectives) if promises_bits(config.strategy) else None,
            watch,
        ]
        active += [
            self.log,
            trackers,
            PartTimer(self.clock, LOGGING, SAVING),
            self.saver,
            PartTimer(self.clock, CHECKPOINT, LOADING),
            meter,
            steps,
        ]
        active += [None if display is None else ProgressUpdater(display), *trace, self.clock]
        if context.replay is not None:
            active += open_replay(context.replay, config, world, devices[0], context.run_dir)
        if (profiled := steps_of(config.profile)) is not None:
            active.append(StepProfiler(*profiled, profile_path(context.run_dir, world.rank), is_main=is_main))
        if is_main and config.shards > 1 and context.replay is None:
            active.append(SplitRemarks(config.shards, config.accumulate, world.world_size, say))
        self.auditor = open_audit(
            config, world, devices, lambda: self.phases.seed, self.collectives, self.sync, self.journal.write
        )
        if self.auditor is not None:
            self.auditor.also_notify(AuditTimer(self.clock))
        self.at_exit = AtExit()
        active += [HeldRun(self.saver) if context.is_held else None, self.auditor, self.at_exit]
        self.listeners = listeners = Listeners([listener for listener in active if listener is not None])

        ledger = Ledger(self.collectives, config.accumulate * -(-config.shards // world.world_size), self.clock)
        self.phases = Phases(config.seed, config.shards, self.sync, ledger, watched, listeners, self.auditor)
        self.loop = Loop(self.phases, journey, listeners)
        self.preparation = Preparation(
            config, devices, self.assignment, self.sync, self.loop, self.collectives, watched, self.state
        )
        self.preparation.listener = listeners
        self.preparation.tuned = context.tuned
        if scaling is not None:
            self.preparation.keep(scaling.scaler)
        self._optimizer_hook = register_optimizer_step_pre_hook(self.phases.before_optimizer)
        self.evaluated = EvaluatedLoaders(lambda: self.assignment(0), config.workers)
        self.session = open_session(context.tuning, self.clock, self.collectives, devices[0])
        self.preparation.is_measured = self.session is not None
        self._announced = False
        self._told_slow: set[tuple[int, str]] = set()
        """Ranks that were said to be slow, and in what."""
        self._say_start()
        self.sampler = self._open_black_box()

    def _open_trackers(self) -> Trackers:
        config, checkpoint = self.config, self.context.checkpoint
        script = Path(sys.argv[0] if sys.argv else "").stem
        about = RunInfo(
            run_dir=self.context.run_dir,
            project=script if script not in ("", "-c", "__main__") else "lockstep",
            config=lambda: {
                **self._started,
                **trackers.hyperparameters,
                "args": shlex.join(sys.argv[1:]),
                "birth": self.context.birth.as_json(),
            },
            is_again=not self.context.is_new,
            aside=preserve_rng,
        )
        resumed_from = checkpoint.manifest.step if checkpoint else None
        chosen = trackers_for(config.track, self.context.trackers, about, resumed_from)
        trackers = Trackers(chosen, lambda: self.log.is_behind)
        return trackers

    def _open_trace(self) -> list[Listener]:
        from lockstep.tools.verify.diagnosis.tracing import open_trace  # slow: imported where a run is traced

        registered = self.state.registered
        return open_trace(self.config, self.world, self.devices[0], self.context.run_dir, registered, self.context.chosen)

    def _open_black_box(self) -> Sampler | None:
        world = self.world
        about = {
            "rank": world.rank,
            "world_size": world.world_size,
            "num_nodes": world.num_nodes,
            "host": world.host,
            "machine": shared_by("pid"),
            "pid": os.getpid(),
            "launch": self.context.token,
            "began_s": time.time(),
        }
        try:
            return Sampler(
                box_path(self.context.run_dir, world.rank),
                about,
                self._doing,
                StuckWatch(
                    self.context.run_dir,
                    world.rank,
                    lambda is_asked: limit_s(self.clock.step_s, self.clock.num_steps, is_asked=is_asked),
                    lambda: self.stop_watch.asked() is not None,
                    lambda: (self.phases.step, self.phases.num_done),
                    say,
                    self._end_stuck,
                ).look,
                loses=OwnSaving(self.context.run_dir, world.rank, lambda report: say(f"WARNING: {report}")).look,
            )
        except OSError as error:
            say(f"WARNING: rank {world.rank} has no black box, so `lockstep stacks` cannot tell what it does: {error}")
            return None

    def _doing(self) -> dict[str, Any]:
        """Called from another thread."""
        phases, micro = self.phases, self.phases.micro
        shard = None if micro is None else micro.shard
        progress, activity = self.steps.progress(), self.clock.doing
        held, saved = self.saver.holds_up, self.saver.in_progress
        if held:
            activity = SAVING if saved is None else f"saving the checkpoint of step {saved}"
        return {
            "step": phases.step,
            "in_step": phases.in_step,
            "phase": phases.num_done,
            "shard": shard,
            "activity": activity,
            "checkpoint": saved,
            "held": held,
            "apart": not phases.in_phase and activity != LOADING,
            "split": self.clock.so_far,
            "pass": None if progress is None else progress.as_json(),
        }

    def _end_stuck(self, report: str, speaks: bool, is_deadlock: bool) -> None:
        """End this process, from another thread than the one that waits."""
        newest, asked = self.saver.newest_written(), self.stop_watch.asked()
        saved = "There is no checkpoint: the same command starts over"
        if newest is not None:
            saved = f"The newest checkpoint is that of step {newest}, from which the same command resumes"
        if asked is None or is_deadlock:
            how, status = "deadlock: ranks that wait like this never go on, so the run was ended", 1
        else:
            step = self.phases.step + (0 if self.phases.in_step else 1)
            how, status = (
                f"{asked.name}: step {step} could not be finished, so the run was ended without saving it",
                128 + asked,
            )
        end_stuck(report, f"{how}. {saved}", status, speaks=speaks)

    def _say_start(self) -> None:
        world, checkpoint = self.world, self.context.checkpoint
        alone = world.num_nodes == 1
        self._hosts = [world.host] * world.world_size if alone else self.collectives.all_gather_plain(world.host)
        self._started = start_event(self.config, world, self.devices[0], self.transport, self._hosts)
        self.journal.write("start", **self._started, inode=self.context.run_dir.stat().st_ino)
        if world.rank == 0:
            for notice in self.context.notices:
                print(visible(f"lockstep: {notice}", has_lines=True), flush=True)
        if checkpoint is not None:
            self.journal.write("resume", step=checkpoint.manifest.step, checkpoint=checkpoint.path.name)
        elif not self.context.is_new:
            self.journal.write("resume", step=0, checkpoint=None)

    def _say_slow(self, slow: SlowRank) -> None:
        if self.world.rank == 0:
            self.journal.write("slow", step=self.phases.step, host=self._hosts[slow.rank], **asdict(slow))
            cause = slow.rank, slow.activity
            if cause not in self._told_slow:
                self._told_slow.add(cause)
                say(f"WARNING: {slow.describe(self._hosts, self.phases.step)}")

    def prepare(self, objects: Sequence[Any]) -> list[Any]:
        """See ``Team.prepare``."""
        self._take_script_seed()
        prepared = self.preparation.prepare(objects)
        if self.restorer is not None and not self.restorer.is_done:
            self.restorer.check_objects()
            self.restorer.check_loaders()
        for loader in prepared:
            if isinstance(loader, PreparedLoader):
                self._announce(loader)
                if (asked := self.context.replay) is not None and asked.blames:
                    assert asked.shard is not None
                    loader.change_deals(SampleBySample(asked.first, asked.shard))
                if self.session is not None:
                    number = self.state.loaders.index(loader) + 1
                    measure(loader, number, self.assignment(number), self.session)
                if self.config.trace == "off":  # a traced run is never resumed
                    self.stop_watch.begin()
        return prepared

    def _announce(self, loader: PreparedLoader) -> None:
        """Print, at the first loader, what the run will do and what in the allotted resources does not fit that."""
        if self._announced or self.world.rank != 0:
            return
        self._announced = True
        line = first_line(loader, self.config, self.world, len(self.devices))
        context = self.context
        clause = f" ({chosen_shards(self.world.world_size)})" if context.is_new and not context.shards_given else ""
        print(visible(f"{line}, {self.transport}, run {context.run_dir}{clause}"), flush=True)
        on_gpu = self.devices[0].type == "cuda"
        for misfit in misfits(
            self.world,
            num_cores=num_cores(),
            num_gpus=torch.cuda.device_count() if on_gpu else 0,
            gpus_each=len(self.devices) if on_gpu else 0,
            workers=getattr(loader, "num_workers", 0),
        ):
            say(misfit)

    def _take_script_seed(self) -> None:
        """Mix the seed of a ``torch.manual_seed`` called after ``join`` into the run's seed. Every rank must call it.

        Raises:
            MismatchError: the ranks gave different seeds, or the run has begun with another one.
        """
        if self._start_seed is None:
            return
        seed, start_seed, self._start_seed = torch.initial_seed(), self._start_seed, None
        remedy = "Give torch.manual_seed() the same number on every rank: each shard has a random stream of its own anyway"
        compare_ranks("random seeds", [f"torch.manual_seed({seed})"], self.collectives, remedy)
        if seed != start_seed:
            self.state.script_seed = seed
            self.phases.seed = derive(self.phases.seed, seed) >> 1
        if self.restorer is not None:
            self.restorer.check_seed(self.state.script_seed)

    def assignment(self, loader: int) -> ShardAssignment:
        """This process's shard assignment for the loader of this number."""
        return ShardAssignment(
            rank=self.world.rank,
            world_size=self.world.world_size,
            num_shards=self.phases.num_shards,
            seed=self.phases.seed,
            loader=loader,
            accumulate=self.config.accumulate,
        )

    def close(self, step: int, *, failed: bool) -> None:
        """Release all resources. Local."""
        self._optimizer_hook.remove()
        self.clock.close()
        if self.sampler is not None:
            self.sampler.close("failed" if failed else "finished")
        self.journal.close(failed=failed)
        if self.context.lock is not None:
            self.context.lock.release()
        self.listeners.end_run(step, failed=failed)
        self.sync.close()
        self.collectives.release()
        close_group()
