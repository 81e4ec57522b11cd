"""Workers whose program is over and whose process does not end: what keeps them, and whether they are worth waiting for."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.launch.idleness import Idleness, usage_of
from lockstep.stopping import say

if TYPE_CHECKING:
    from lockstep.tools.explain.rank_reports import RankReport

_LOOK_S = 1.0
LINGERS_S = 10.0
"""A worker that is still there so long after its program is reported."""
_IDLE_S = 2.0
"""One that has done nothing for so long does nothing."""
_BUSY_S = 120.0
"""Before, one line is enough for a worker that does something, such as an upload."""
_REMEDIES: Mapping[str, str] = {
    "thread": "Python waits for such a thread: let it end with the script (an event, a None in its queue), or start it with "
    "daemon=True.",
    "executor": "Python waits for the calls of executors: let them end with the script.",
    "child": "Python waits for such a child: let it end with the script, or start it with daemon=True.",
    "program": "An exit handler waits for it: end it with the script (terminate()).",
    "queue": "Python waits until somebody has read it: empty the queue, or call its cancel_join_thread().",
}


class Lingering:
    """The workers of one launch whose program is over. ``private_dir``: of the launch."""

    def __init__(self, private_dir: str) -> None:
        self.next_look = math.inf
        """When to call ``look`` again, in the time of ``time.monotonic``."""
        self._dir = Path(private_dir)
        self._over_at: dict[int, float] = {}
        """By rank, as are the next three."""
        self._patience_s: dict[int, float] = {}
        self._pids: dict[int, int] = {}
        self._work: dict[int, Idleness] = {}
        self._told = set[int]()
        self._mentioned = set[int]()
        """Those that did something when they were reported first."""

    def begin(self, rank: int, pid: int, now: float, *, patience_s: float) -> None:
        """A worker's program is over.

        ``patience_s``: how long what keeps it is worth waiting for while it does something, if the launch is to end.
        """
        self._over_at[rank], self._pids[rank], self._work[rank] = now, pid, Idleness(now)
        self._patience_s[rank] = patience_s
        self.next_look = min(self.next_look, now + _LOOK_S)

    def end(self, rank: int) -> None:
        """A worker has ended."""
        for known in (self._over_at, self._pids, self._work, self._patience_s):
            known.pop(rank, None)
        if not self._work:
            self.next_look = math.inf

    def look(self, now: float) -> None:
        """Look what they do, and report those that do not end, once."""
        usage = usage_of(self._pids.values())
        for rank, work in self._work.items():
            work.note(usage[self._pids[rank]], now)
        self.next_look = now + _LOOK_S
        late = {rank for rank, over_at in self._over_at.items() if now - over_at >= LINGERS_S} - self._told
        working = {rank for rank in late if self._is_at_work(rank) and now - self._over_at[rank] < _BUSY_S}
        if late - working or working - self._mentioned:
            with contextlib.suppress(Exception):  # no error here may affect the workers
                self._report(late - working, working - self._mentioned)

    def _is_at_work(self, rank: int) -> bool:
        return self._work[rank].idle_s < _IDLE_S

    def _report(self, late: set[int], working: set[int]) -> None:
        from lockstep.tools.explain.rank_reports import grouped

        held = [report for report in self._reports(asks=True) if _kinds(report) - {"closing"}]
        for group in grouped([report for report in held if report.rank in late]):
            self._told |= {report.rank for report in group}
            say(f"WARNING: {_in_words(group, is_idle=not any(self._is_at_work(report.rank) for report in group))}")
        for group in grouped([report for report in held if report.rank in working]):
            self._mentioned |= {report.rank for report in group}
            say(_in_a_line(group))

    def _reports(self, *, asks: bool) -> list[RankReport]:
        from lockstep.tools.explain.rank_reports import read_reports

        return read_reports(self._dir, time.time(), asks=asks)

    # When the launch is to end

    def held(self, now: float) -> set[int]:
        """The ranks that something of the script's keeps from ending for no good reason, or that do not report. The others
        close their run, wait for other ranks, or do something in an exit handler, say."""
        with contextlib.suppress(Exception):
            reports = [report for report in self._reports(asks=False) if report.rank in self._over_at]
            held = {report.rank for report in reports if report.state in ("late", "stopped") or _kinds(report) - {"closing"}}
            return {
                rank for rank in held if not (self._is_at_work(rank) and now - self._over_at[rank] < self._patience_s[rank])
            }
        return set()

    def is_worth_waiting(self, now: float) -> bool:
        """Whether one of the other ranks does something: it may be writing the last checkpoint."""
        at_work = set(filter(self._is_at_work, self._work))
        return bool(at_work) and bool(at_work - self.held(now))


def _kinds(report: RankReport) -> set[str]:
    return set() if report.is_waiting else {str(holder["kind"]) for holder in report.ending.get("holders", ())}


def _in_a_line(group: Sequence[RankReport]) -> str:
    from lockstep.machine.sizes import name_ranks
    from lockstep.tracebacks.frames import users_location

    first = group[0].ending["holders"][0]
    location = users_location([(str(file), int(line), str(name)) for file, line, name in first["stack"]])
    names, whose = name_ranks([report.rank for report in group]), "its" if len(group) == 1 else "their"
    verb = "is" if len(group) == 1 else "are"
    at = f", at {location}" if location else ""
    return f"{names} {verb} still ending, {group[0].ending_s:.0f} s after {whose} script: {first['what']} is at work{at}"


def _in_words(group: Sequence[RankReport], *, is_idle: bool) -> str:
    from lockstep.machine.sizes import name_ranks

    first = group[0]
    holders: Sequence[Mapping[str, Any]] = first.ending["holders"]
    names = name_ranks([report.rank for report in group])
    verb = "does" if len(group) == 1 else "do"
    kind, what = holders[0]["kind"], holders[0]["what"]
    why = f" because of {what}" if kind == "queue" else f": {what} {'waits' if is_idle else 'still runs'}"
    whose = "Its" if len(group) == 1 else "Their"
    return "\n".join(
        [
            f"{names} {verb} not end{why}. {whose} script was over {first.ending_s:.0f} s ago.",
            *(f"  {line}" for line in first.stack(short=True) if line != what),
            f"{_REMEDIES.get(kind, '')} Ctrl-C or SIGTERM ends the run.".strip(),
        ]
    )
