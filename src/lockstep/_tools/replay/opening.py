"""Opens the listeners that record a run, or a replay of it, for ``lockstep diff`` and ``lockstep
replay``."""

from __future__ import annotations

import functools
from pathlib import Path

from lockstep._joining.instrument import Run
from lockstep._listener import Listener
from lockstep._loop.dry_runs import DryRuns
from lockstep._tools.replay.blame import SampleBySample
from lockstep._tools.replay.digests import DIRECTORY
from lockstep._tools.replay.journal import DigestJournal, is_due
from lockstep._tools.replay.request import SAMPLES, Request
from lockstep._tools.replay.shown_steps import FromStep, ShownSteps
from lockstep._tools.verify.diagnosis.tracing import begin_trace
from lockstep._tools.verify.trace.lines import TraceWriter
from lockstep._tools.verify.trace.subjects import Subjects


def open_digests(run: Run, every: int, always: range) -> list[Listener]:
    """Open this process's part of the digest journal. Returns its listeners, to be notified in this
    order.

    Args:
        run: that is recorded.
        every: steps between full entries; 0: there are none but those in ``always``.
        always: further steps that are written in full: the steps that a replay shows.
    """
    birth, rank = run.fixed_settings, run.world.rank
    if every == 0 and not always:
        return []
    writer = TraceWriter(run.run_dir, f"rank-{rank}", DIRECTORY, is_fresh=False)
    writer.write(
        event="start",
        launch=run.launch_id,
        rank=rank,
        world_size=run.world.world_size,
        after=run.after,
        every=every,
        shards=birth.shards,
        exact=birth.exact,
    )
    subjects = Subjects()
    run.fingerprint.want(functools.partial(is_due, every=every))
    return [subjects, DigestJournal(writer, every, run.fingerprint, subjects, is_main=rank == 0, always=always)]


def open_replay(run: Run, request: Request) -> list[Listener]:
    """Open the recording of a replay's steps. Returns the listeners, to be notified in this order;
    the last ends the script."""
    subjects, world = Subjects(), run.world
    out = None if request.out is None or request.blamed_phase is not None else Path(request.out)
    if out is not None and world.world_size > 1:
        out = out.with_name(f"{out.stem}-rank-{world.rank}{out.suffix}")
    writer = begin_trace(run, "steps", run.config.interval)
    recorder = ShownSteps(writer, subjects, request.last, request.shard, out)
    if request.blamed_phase is not None:
        assert request.shard is not None
        dry_runs, samples = DryRuns(run.phases, run.strategy, run.state), TraceWriter(run.run_dir, SAMPLES)
        place = request.first, request.blamed_phase
        run.phases.micro_batches = SampleBySample(place, request.shard, run.phases, dry_runs, samples).runs
    return [subjects, FromStep(recorder, request.first)]
