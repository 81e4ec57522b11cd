"""What explains a run from inside: its black boxes, slow ranks, and profiles."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from lockstep.base.interval import steps_of
from lockstep.joining.instrument import Instrument, Run
from lockstep.listener import Listener
from lockstep.tools.explain.profiler import StepProfiler, profile_path
from lockstep.tools.explain.run_box import RunBox
from lockstep.tools.explain.slow_reports import SlowReports


class Explanation(Instrument):
    """In every run."""

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """Its black box, and the profiler of a run that is profiled. The clock tells of slow ranks."""
        run.clock.tell = SlowReports(run).add
        yield RunBox(run)
        if (profiled := steps_of(run.config.profile)) is not None:
            yield StepProfiler(*profiled, profile_path(run.run_dir, run.world.rank), is_main=run.world.rank == 0)
