"""What explains a run from inside: its black boxes, slow ranks, and profiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockstep.instrument import Instrument, Run

if TYPE_CHECKING:
    from lockstep.listener import Listener


class Explanation(Instrument):
    """In every run."""

    def listeners(self, run: Run) -> Iterable[Listener]:
        """Its black box, and the profiler of a run that is profiled. The clock tells of slow ranks."""
        from lockstep.interval import steps_of
        from lockstep.tools.explain.run_box import RunBox
        from lockstep.tools.explain.slow_reports import SlowReports

        run.clock.tell = SlowReports(run).add
        yield RunBox(run)
        if (profiled := steps_of(run.config.profile)) is not None:
            from lockstep.tools.explain.profiler import StepProfiler, profile_path

            yield StepProfiler(*profiled, profile_path(run.run_dir, run.world.rank), is_main=run.world.rank == 0)
