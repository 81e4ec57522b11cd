"""Notices that a run does not get on, and says who waits for whom, long before anything times out.

Every rank looks at itself only. One that has waited for too long reads the black boxes of all, and the lowest of those that
wait speaks: so it takes no message, which could not get through now anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.explain.asking import ask, look_up
from lockstep.explain.rank_reports import RankReport, name_ranks, read_reports

LEAST_S = 10.0
BUSY_S = 120.0
"""For how long a rank that works may keep the others waiting before it is said."""
_STEPS = 5
_FIRST_S = 60.0
"""Before some steps were taken nobody knows how long one takes, and what is compiled and read first takes long."""
_KNOWN_AFTER = 3
_INNERMOST = 6
"""Lines of a stack in the report."""
_DEBUGGERS = ("pdb.py", "bdb.py", "/debugpy/", "/pydevd", "/IPython/")


def limit_s(step_s: float, num_steps: int) -> float:
    """For how long ranks may wait for others before it is said.

    Args:
        step_s: how long a step usually takes.
        num_steps: taken so far in this launch.
    """
    return max(LEAST_S, _STEPS * step_s) if num_steps >= _KNOWN_AFTER else _FIRST_S


class StuckWatch:
    """What one rank does when it has waited for long.

    Args:
        run_dir: of the run.
        rank: of this process.
        tell: called with the report, on the lowest of the ranks that wait.
    """

    def __init__(self, run_dir: Path, rank: int, tell: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._tell = tell

    def look(self) -> bool:
        """This rank has waited for too long. Whether the matter is settled: it was told, or another rank does that."""
        reports = read_reports(self._run_dir, time.time(), look_up, ask)
        text = who_waits(reports, str(self._run_dir))
        if text is None:
            return False
        if min(report.rank for report in reports if report.is_waiting) == self._rank:
            self._tell(text)
        return True


def who_waits(reports: Sequence[RankReport], run_dir: str) -> str | None:
    """Who waits, for whom, and what those do; None: nobody is missing, or somebody is in a debugger."""
    waiting = [report for report in reports if report.is_waiting]
    missing = [report for report in reports if not report.is_waiting]
    if not waiting or any(_is_debugged(report) for report in missing):
        return None
    longest = max(waiting, key=lambda report: report.still_s)
    if not missing:
        return _differing(waiting, longest.still_s, run_dir)
    if longest.still_s < BUSY_S and not any(_is_still(report) for report in missing):
        return None  # those that are waited for work: rank 0 evaluates, say
    verb = "waits" if len(waiting) == 1 else "wait"
    lines = [
        f"no progress for {longest.still_s:.0f} s: {name_ranks([report.rank for report in waiting])} {verb} for "
        f"{name_ranks([report.rank for report in missing])}."
    ]
    for report in missing:
        who = f"rank {report.rank} on {report.record['host']} (pid {report.record['pid']})"
        lines.append(f"  {who}: {report.describe()}")
        lines += [f"    {line}" for line in report.stack()[-_INNERMOST:]]
    lines.append(f"`lockstep stacks {run_dir}` shows all ranks, at any time.")
    return "\n".join(lines)


def _differing(reports: Sequence[RankReport], still_s: float, run_dir: str) -> str | None:
    """All wait: in different collectives?"""
    begun: dict[str, list[int]] = {}
    for report in reports:
        if report.record["collective"] is not None:
            begun.setdefault(report.record["collective"]["text"], []).append(report.rank)
    if len(begun) < 2:
        return None
    lines = [f"no progress for {still_s:.0f} s: the ranks wait for each other in different collectives."]
    lines += [f"  {name_ranks(ranks)}: {collective}" for collective, ranks in begun.items()]
    lines.append("Every rank must call the same ones in the same order: is one called on some ranks only, behind an `if`?")
    lines.append(f"`lockstep stacks {run_dir}` shows where each rank is.")
    return "\n".join(lines)


def _is_still(report: RankReport) -> bool:
    """Whether a rank that is waited for does nothing, as far as can be seen."""
    return report.state != "running" or report.still_s >= LEAST_S


def _is_debugged(report: RankReport) -> bool:
    return any(name in file for file, _, _ in report.frames for name in _DEBUGGERS)
