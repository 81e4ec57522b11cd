"""The black box of a process that trains, and what it does about waiting for others."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from lockstep._base import exit_status
from lockstep._base.reports import note, publish, warn
from lockstep._base.stopping import end_stuck, say
from lockstep._events.measure.split import LOADING
from lockstep._joining.instrument import Run
from lockstep._listener import Listener, Stage
from lockstep._loop.meeting import Parting
from lockstep._tools.explain.black_box import box_path
from lockstep._tools.explain.parted import parted
from lockstep._tools.explain.reading import read_reports
from lockstep._tools.explain.sampler import Sampler, about_process
from lockstep._tools.explain.stall_notices import StallNotices
from lockstep._tools.explain.stuck import StuckWatch, limit_s


class RunBox(Listener):
    """The black box of a run's process, open until the run ends. If it cannot be opened, training
    continues without it."""

    stage = Stage.EARLY

    def __init__(self, run: Run) -> None:
        self._run = run
        try:
            self._sampler: Sampler | None = self._open()
        except OSError as error:
            self._sampler = None
            warn(
                f"rank {run.world.rank} cannot record what it does, so `lockstep stacks` will not show it: {error}",
                code="no-black-box",
            )

    def _open(self) -> Sampler:
        run, world = self._run, self._run.world
        run.meetings.look = self._look
        about = about_process(world.rank, world.world_size, world.host, run.launch_id, num_nodes=world.num_nodes)
        stuck = StuckWatch(
            run.run_dir,
            world.rank,
            lambda is_asked: limit_s(run.clock.step_s, run.clock.num_steps, is_asked=is_asked),
            lambda: run.stop_watch.asked() is not None,
            lambda: run.position[:2],
            StallNotices(publish, say),
            self._end_stuck,
        )
        return Sampler(box_path(run.run_dir, world.rank), about, self._doing, lambda: run.position.step, stuck.look)

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        """Close it."""
        if self._sampler is not None:
            self._sampler.close("failed" if failed else "finished")

    def _doing(self) -> dict[str, Any]:
        """What the main thread does, for a record. Called from the sampler's thread."""
        run, position = self._run, self._run.position
        progress, activity = run.passes.progress, run.clock.doing
        held, saved = run.saver.is_paused, run.saver.in_progress
        if held:
            activity = "saving a checkpoint" if saved is None else f"saving the checkpoint of step {saved}"
        return {
            **position._asdict(),
            "in_step": run.phases.in_step,
            "activity": activity,
            "checkpoint": saved,
            "held": held,
            "in_phase": run.phases.in_phase,
            "left": None if run.meetings.left is None else asdict(run.meetings.left),
            "exit": exit_status.asked_at(),
            "meeting": run.meetings.place._asdict(),
            "apart": not run.phases.in_phase and activity != LOADING,
            "pass": None if progress is None else progress.as_json(),
        }

    def _look(self, waited_s: float) -> Parting | None:
        """Whether ranks have parted while this one waits for all others; None: none is known to."""
        found = None
        with contextlib.suppress(Exception):  # no error here may affect the training
            found = parted(read_reports(self._run.run_dir, time.time()), waited_s)
        return None if found is None else Parting(found.text, functools.partial(note, found))

    def _end_stuck(self, report: str, speaks: bool, is_deadlock: bool) -> None:
        """End this process, from another thread than the one that waits."""
        run = self._run
        newest, asked = run.saver.newest_written(), run.stop_watch.asked()
        saved = "There is no checkpoint: repeating the command starts over"
        if newest is not None:
            saved = f"To resume from the newest checkpoint (step {newest}), repeat the command"
        if asked is None or is_deadlock:
            how, status = "deadlock: these ranks can never continue, so the run was stopped", 1
        else:
            step = run.phases.step + (0 if run.phases.in_step else 1)
            how = f"{asked.name}: step {step} could not be finished, so the run was stopped without saving it"
            status = 128 + asked
        end_stuck(report, f"{how}. {saved}", status, speaks=speaks)
