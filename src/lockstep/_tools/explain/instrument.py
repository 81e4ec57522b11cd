"""The instrument that explains a run from inside: its black boxes, and slow ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict

from typing_extensions import override

from lockstep._base.reports import SLOW, Report, publish
from lockstep._base.shapes import fits
from lockstep._joining.instrument import Instrument, Run
from lockstep._listener import Listener
from lockstep._tools.explain.black_box import box_path, read_box
from lockstep._tools.explain.record import Record
from lockstep._tools.explain.run_box import RunBox
from lockstep._tools.explain.slow_ranks import SlowRank, SlowRanks
from lockstep._tools.explain.slow_scripts import line_of


class Explanation(Instrument):
    """The instrument of every run that records what its ranks do, and reports slow ones."""

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """Opens the black box, and has the clock report slow ranks."""
        told: set[tuple[int, str]] = set()

        def report(slow: SlowRank) -> None:
            """Writes it to the event log, and prints the first report for a rank and activity. All
            ranks reach the same result, so only rank 0 does this."""
            step, cause = run.phases.step, (slow.rank, slow.activity)
            if run.world.rank == 0:
                run.events.write("slow", step=step, host=run.machines[slow.rank], **asdict(slow))
                if cause not in told:
                    told.add(cause)
                    at = _line_of(run, slow.rank)
                    text = f"{slow.describe(run.machines, step)}{f' It spends the time at {at}.' if at else ''}"
                    places = {slow.rank: at} if at else {}
                    publish(Report(kind=SLOW, text=text, ranks=(slow.rank,), cause=slow.activity, places=places))

        run.clock.tell = SlowRanks(may_judge=run.strategy.times_forward, tell=report).add
        return [RunBox(run)]


def _line_of(run: Run, rank: int) -> str:
    """The line where a slow rank spends its time, by its black box and a neighbor's; empty:
    unknown."""
    ranks = (rank, (rank + 1) % run.world.world_size)
    with contextlib.suppress(Exception):  # no error here may affect the training
        records = [read_box(box_path(run.run_dir, each)) for each in ranks]
        return line_of(rank, [record for record in records if record is not None and fits(record, Record)])
    return ""
