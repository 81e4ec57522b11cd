"""Reports the slow ranks of a run, as it trains."""

from __future__ import annotations

from dataclasses import asdict

from lockstep.base.stopping import say
from lockstep.joining.instrument import Run
from lockstep.tools.explain.slow_ranks import SlowRank, SlowRanks


class SlowReports:
    """To its journal, and the first of a rank and an activity to the user. On rank 0; all come to the same result."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._told: set[tuple[int, str]] = set()
        """Ranks that were said to be slow, and in what."""
        self.add = SlowRanks(may_judge=run.sync.times_forward, tell=self._report).add
        """For ``StepClock.tell``."""

    def _report(self, slow: SlowRank) -> None:
        run = self._run
        if run.world.rank != 0:
            return
        step, cause = run.phases.step, (slow.rank, slow.activity)
        run.journal.write("slow", step=step, host=run.hosts[slow.rank], **asdict(slow))
        if cause not in self._told:
            self._told.add(cause)
            say(f"WARNING: {slow.describe(run.hosts, step)}")
