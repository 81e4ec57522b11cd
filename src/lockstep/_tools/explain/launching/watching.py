"""Which workers wait for whom, from their black boxes: reported while they run, and kept for their
end.

The launcher reports it, since it is no rank: it can do so when all ranks hang in C code, it knows
which have exited, and there is only one of it. Ranks that have joined a run report for themselves,
as under any launcher, since their step time is known. With several machines, each launcher knows
the ranks of its machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep._base.reports import Report
from lockstep._launch import failures
from lockstep._launch.observer import Launch
from lockstep._tools.explain.deadlock import CERTAIN_S, deadlocked
from lockstep._tools.explain.loader_workers import waits_for_loader
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.reading import LATE_S, read_records, read_reports, run_joined
from lockstep._tools.explain.sampler import waits_at
from lockstep._tools.explain.stall_notices import StallNotices
from lockstep._tools.explain.stuck import BUSY_S, CLEARER_S, LEAST_S, is_vague, limit_of_script_s, who_waits

_LOST_S = 4.0
"""The limit of a rank whose loader worker lost a batch, which certainly never comes."""
_SELDOM = 15
"""The number of looks per collection of reports once the user was warned."""


class Watching:
    """What is known of the ranks of a launch. All but ``look`` may be called from any thread.

    Args:
        launch: the launch that is watched.
        notices: prints warnings and all-clears.
    """

    def __init__(self, launch: Launch, notices: StallNotices) -> None:
        self._dir, self._end = Path(launch.private_dir), launch.end
        self._is_whole = len(launch.ranks) == launch.world_size
        """Whether all ranks are of this machine."""
        self._told = ""
        """The text of the report about the present wait; empty: none yet."""
        self._warn_again_s = math.inf
        """The number of consecutive looks, one a second, at which the wait is looked at again,
        because the report was no warning, or vague."""
        self._is_vague = False
        """Whether the report about the present wait was vague."""
        self._notices = notices
        self._warned_at: dict[int, tuple[int, int]] = {}
        """The progress of the ranks that waited when the user was warned."""
        self._waited: tuple[int, ...] = ()
        """The ranks that had waited for too long at the last look."""
        self._looks = 0
        """The number of consecutive looks, up to now, at which a rank had waited for too long."""
        self._dead_since: float | None = None
        """The time at which the ranks were first seen in a deadlock, as ``time.monotonic`` counts;
        None: they are in none."""
        self.explained: Report | None = None
        """The report about the first ranks that timed out, which is printed with their failure;
        None: none."""
        self._lock = threading.Lock()

    def explain(self, echoes: Collection[int]) -> str:
        """The text of the report on who waits for whom now; empty: no rank does, as far as is seen.

        Args:
            echoes: ranks that have just failed because they timed out; they are treated as still
                waiting.
        """
        report: Report | None = None
        with contextlib.suppress(Exception):  # the failure is reported even without this
            report = self._of_failed(echoes)
        if report is None:
            return self._told
        self.explained = self.explained or report
        return report.text

    def _of_failed(self, echoes: Collection[int]) -> Report | None:
        reports = self._reports()
        report = self._who_waits(_as_running(reports, echoes), is_over=True)
        # A communication library that ends a process may have done so for a timeout, or for what
        # has come too early.
        have_aborted = any(report.rank in echoes and report.state == "gone" for report in reports)
        is_brief = have_aborted and report is not None and (report.seconds or 0.0) < LEAST_S
        return None if is_brief else report

    @property
    def where(self) -> Path:
        """The directory of the ranks' black boxes."""
        return self._where()

    def _where(self) -> Path:
        return run_joined(self._dir) or self._dir

    def look(self) -> None:
        """Look for ranks that wait.

        A wait is reported once, and only if it was too long at two looks in a row: ranks that were
        stopped and have just continued have not updated their black boxes yet."""
        # ranks that have joined a run watch and end it themselves, since they know what was saved
        if self._where() != self._dir:
            return
        now_s = time.time()
        records = read_records(self._dir)
        waited = tuple(int(record["rank"]) for record in records if _waits_too_long(record, now_s))
        if self._notices.has_warned and self._has_moved(records):
            self._notices.all_clear()
        before, self._waited = self._waited, waited
        self._looks = self._looks + 1 if waited else 0
        if not waited:
            self._told, self._dead_since, self._warn_again_s = "", None, math.inf
        elif (not self._told and set(waited) & set(before)) or self._looks >= self._warn_again_s:
            self._report(waited, records)
        elif self._told and (self._dead_since is not None or self._looks % _SELDOM == 0):
            self._look_for_deadlock()

    def _report(self, waited: tuple[int, ...], records: Sequence[Mapping[str, Any]]) -> None:
        report = self._who_waits(self._reports(), is_over=False)
        if report is not None:
            was_vague, self._is_vague = bool(self._told) and self._is_vague, is_vague(report)
            self._told = report.text
            self._warn_again_s = math.inf if report.is_warning else self._looks + BUSY_S
            if self._is_vague:
                self._warn_again_s = self._looks + CLEARER_S
                if was_vague:
                    return
            self._warned_at = {int(record["rank"]): _progress(record) for record in records if record["rank"] in waited}
            self._notices.warn(report, report.seconds or 0.0)
            self._look_for_deadlock()

    def _has_moved(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the ranks that waited when the user was warned have finished what they waited
        for."""
        now = {int(record["rank"]): record for record in records if record["ended"] != "failed"}
        return all(rank in now and _progress(now[rank]) != before for rank, before in self._warned_at.items())

    def _look_for_deadlock(self) -> None:
        """End the launch if its ranks can never continue, and could not for some time."""
        now = time.monotonic()
        if self._dead_since is not None and now - self._dead_since < CERTAIN_S:
            return
        reports = self._reports()
        if not (ranks := deadlocked(reports)):
            self._dead_since = None
        elif self._dead_since is None:
            self._dead_since = now
        else:
            report = self._who_waits(reports, is_over=False)
            how = "deadlock: these ranks can never continue, so the run was stopped"
            self._end(failures.from_deadlock(min(ranks), self._told if report is None else report.text, how))

    def _reports(self) -> list[RankReport]:
        with self._lock:
            return read_reports(self._where(), time.time())

    def _who_waits(self, reports: Sequence[RankReport], *, is_over: bool) -> Report | None:
        where = self._where()
        shown = "" if where == self._dir else os.path.relpath(where)
        return who_waits(reports, shown, is_over=is_over, is_here=not self._is_whole and not shown)


def _as_running(reports: Sequence[RankReport], echoes: Collection[int]) -> list[RankReport]:
    """``echoes`` have just failed because they timed out; they are treated as still waiting. So are
    ranks that waited as well, and whose exit status the launcher does not know yet: ranks that wait
    for one another time out at the same moment."""

    def as_running(report: RankReport) -> RankReport:
        running = replace(report, state="running")
        is_unknown = report.state == "gone" and "status" not in report.record
        return running if report.rank in echoes or (is_unknown and running.is_waiting) else report

    return list(map(as_running, reports))


def _progress(record: Mapping[str, Any]) -> tuple[int, int]:
    """The collectives and the steps that a rank has finished."""
    return int(record["doing"].get("num_done", 0)), int(record["doing"].get("step", 0))


def _waits_too_long(record: Mapping[str, Any], now_s: float) -> bool:
    is_late = now_s - float(record["time_s"]) > LATE_S  # what it last did is over
    waits = waits_at(record["stack"], record["collective"]) or waits_for_loader(record["stack"])
    if is_late or record["ended"] is not None or not waits:
        return False
    has_lost = any(worker.get("error") for worker in record.get("workers", ()))
    return now_s - float(record["since_s"]) > (_LOST_S if has_lost else limit_of_script_s(record))
