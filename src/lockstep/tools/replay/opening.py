"""Opens the listeners that record a run, or a replay of it, for ``lockstep diff`` and ``lockstep replay``."""

from __future__ import annotations

from pathlib import Path

import torch

from lockstep.config import RunConfig
from lockstep.journal.ranks import file_of
from lockstep.journal.writer import EventWriter
from lockstep.listener import Listener
from lockstep.recovery.fingerprint import Fingerprint
from lockstep.regular import own_directory
from lockstep.rundir.birth import Birth
from lockstep.tools.replay.breakpoint import Breakpoint
from lockstep.tools.replay.digests import DIRECTORY
from lockstep.tools.replay.journal import DigestJournal
from lockstep.tools.replay.request import SHOWN, Request
from lockstep.tools.replay.step_details import StepDetails
from lockstep.tools.replay.step_filter import FromStep
from lockstep.tools.verify.diagnosis.tracing import begin_trace
from lockstep.tools.verify.trace.lines import TraceWriter
from lockstep.tools.verify.trace.recorder import Recorder
from lockstep.tools.verify.trace.subjects import Subjects
from lockstep.world import World


def open_digests(
    config: RunConfig,
    world: World,
    birth: Birth,
    launch: tuple[str, int],
    fingerprint: Fingerprint,
    request: Request | None,
) -> list[Listener]:
    """Open this process's part of the digest journal. Returns its listeners, to be notified in this order.

    Args:
        config: with the run's directory and ``journal_every``.
        world: this process's place among all processes.
        birth: of the run.
        launch: its token, and the step after which the run resumes.
        fingerprint: of the run's state.
        request: of a replay, whose steps are written in full; None: this is a run.
    """
    if config.journal_every == 0 and request is None:
        return []
    assert config.run_dir is not None
    own_directory(Path(config.run_dir) / DIRECTORY)
    writer = EventWriter(Path(config.run_dir), file_of(DIRECTORY, world.rank))
    writer.write(
        "start",
        launch=launch[0],
        rank=world.rank,
        world_size=world.world_size,
        after=launch[1],
        every=config.journal_every,
        shards=birth.shards,
        exact=birth.exact,
    )
    subjects = Subjects()
    always = range(0) if request is None else request.steps
    journal = DigestJournal(writer, config.journal_every, fingerprint, subjects, is_main=world.rank == 0, always=always)
    return [subjects, journal]


def open_replay(request: Request, config: RunConfig, world: World, device: torch.device, run_dir: Path) -> list[Listener]:
    """Open the recording of a replay's steps. Returns the listeners, to be notified in this order; the last ends the script."""
    subjects = Subjects()
    out = None if request.out is None or request.blames else Path(request.out)
    if out is not None and world.world_size > 1:
        out = out.with_name(f"{out.stem}-rank-{world.rank}{out.suffix}")
    details = StepDetails(TraceWriter(run_dir, f"{SHOWN}-{world.rank}"), subjects, request.shard, out)
    recorder = Recorder(begin_trace(config, world, device, run_dir, "steps"), subjects, request.last, None)
    listeners: list[Listener] = [FromStep(details, request.first)]
    if request.debugs:
        listeners.append(FromStep(Breakpoint(request.shard), request.first))
    return [subjects, *listeners, FromStep(recorder, request.first)]
