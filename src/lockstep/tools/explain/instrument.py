"""What explains a run from inside: its black boxes, and slow ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from typing_extensions import override

from lockstep.base.reports import SLOW, Report, publish
from lockstep.joining.instrument import Instrument, Run
from lockstep.listener import Listener
from lockstep.tools.explain.run_box import RunBox
from lockstep.tools.explain.slow_ranks import SlowRank, SlowRanks


class Explanation(Instrument):
    """In every run."""

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """Its black box. The clock tells of slow ranks."""
        told: set[tuple[int, str]] = set()

        def report(slow: SlowRank) -> None:
            """To the journal, and the first of a rank and an activity to the user. All ranks come to the same result."""
            step, cause = run.phases.step, (slow.rank, slow.activity)
            if run.world.rank == 0:
                run.journal.write("slow", step=step, host=run.hosts[slow.rank], **asdict(slow))
                if cause not in told:
                    told.add(cause)
                    text = slow.describe(run.hosts, step)
                    publish(Report(kind=SLOW, text=text, ranks=(slow.rank,), cause=slow.activity))

        run.clock.tell = SlowRanks(may_judge=run.sync.times_forward, tell=report).add
        return [RunBox(run)]
