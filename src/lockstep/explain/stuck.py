"""Notices that a run does not get on, and says who waits for whom, long before anything times out.

Every rank looks at itself only. One that has waited for too long reads the black boxes of all, and the lowest of those that
wait speaks: so it takes no message, which could not get through now anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.explain.asking import ask, look_up
from lockstep.explain.differing import first_difference
from lockstep.explain.loader_workers import waits_for_loader
from lockstep.explain.rank_reports import RankReport, brief, grouped, name_ranks, read_reports
from lockstep.explain.sampler import meets_at

LEAST_S = 10.0
BUSY_S = 120.0
"""For how long a rank that works may keep the others waiting before it is said."""
_STEPS = 5
_FIRST_S = 60.0
"""Before some steps were taken nobody knows how long one takes, and what is compiled and read first takes long."""
_KNOWN_AFTER = 3
_IN_VAIN_S = 1.0
_TO_SET_UP = 5
"""Collectives: DistributedDataParallel compares the ranks' models and sends rank 0's to all."""
_DEBUGGERS = ("pdb.py", "bdb.py", "/debugpy/", "/pydevd", "/IPython/")


def limit_s(step_s: float, num_steps: int) -> float:
    """For how long ranks may wait for others before it is said.

    Args:
        step_s: how long a step usually takes.
        num_steps: taken so far in this launch.
    """
    return max(LEAST_S, _STEPS * step_s) if num_steps >= _KNOWN_AFTER else _FIRST_S


def limit_of_script_s(record: Mapping[str, Any]) -> float:
    """The same for a script that knows no steps, from a rank's record: by the collectives that it has finished.

    The first few are those of setting up. (A step has one at least.)
    """
    doing = record["doing"]
    return limit_s(doing.get("usual_s", 0.0), doing.get("num_done", 0) - _TO_SET_UP)


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


def who_waits(
    reports: Sequence[RankReport], run_dir: str = "", *, is_over: bool = False, is_here: bool = False
) -> str | None:
    """Who waits, for whom, and what those do; None: nobody is missing, or those that are have a reason.

    Args:
        reports: of the ranks.
        run_dir: what ``lockstep stacks`` is to be asked for; empty: it needs nothing.
        is_here: it shows the ranks of the machine that it is called on alone.
        is_over: the ranks have timed out. Else those that they wait for may be at work, or in a debugger.
    """
    reports = [replace(report, is_behind=_is_behind(report, reports)) for report in reports]
    waiting = [report for report in reports if report.is_waiting]
    missing = [report for report in reports if not report.is_waiting]
    if not waiting or (not is_over and any(_is_debugged(report) for report in missing)):
        return None
    longest = max(waiting, key=lambda report: report.still_s)
    if is_over and longest.still_s < _IN_VAIN_S:
        return None  # what has failed was something else
    command = f"lockstep stacks {run_dir}".strip()
    whose = "the ranks of the machine that it is called on" if is_here else "all ranks"
    last = "" if is_over else f"`{command}` shows {whose}, at any time."
    if not missing:
        return _differing(waiting, longest.still_s, last)
    if not is_over and longest.still_s < BUSY_S and not any(_is_still(report, waiting) for report in missing):
        return None  # those that are waited for work: rank 0 evaluates, say
    verb = "waits" if len(waiting) == 1 else "wait"
    lines = [
        f"no progress for {longest.still_s:.0f} s: {name_ranks([report.rank for report in waiting])} {verb} for "
        f"{name_ranks([report.rank for report in missing])}."
    ]
    for group in grouped(missing):
        hosts = ", ".join(sorted({str(report.record["host"]) for report in group}))
        pid = f" (pid {group[0].record['pid']})" if len(group) == 1 else ""
        lines.append(f"  {name_ranks([report.rank for report in group])} on {hosts}{pid}: {group[0].describe()}")
        lines += [f"    {line}" for line in brief(group[0].stack())]
    return "\n".join([*lines, *([last] if last else [])])


def _differing(reports: Sequence[RankReport], still_s: float, last: str) -> str | None:
    """All wait: in different collectives, or behind one that was not the same on all ranks?"""
    begun: dict[str, list[RankReport]] = {}
    for report in reports:
        if report.record["collective"] is not None:
            begun.setdefault(report.record["collective"]["text"], []).append(report)
    first = first_difference([report.record for report in reports])
    if len(begun) < 2 and first is None:
        return None
    lines = [f"no progress for {still_s:.0f} s: the ranks have called different collectives, and all of them wait."]
    for collective, group in begun.items():
        places = [line for line in group[0].stack() if not line.startswith(" ")]
        where = f", at {places[-1]}" if places else ""
        lines.append(f"  {name_ranks([report.rank for report in group])}: {collective}{where}")
    if first is not None:
        lines.append(f"  The first that differs, of the newest ones: {first}.")
    lines.append(
        "Every rank must call the same ones in the same order, with tensors of the same shape and type: is one called on some "
        "ranks only, behind an `if`?"
    )
    return "\n".join([*lines, *([last] if last else [])])


def _is_behind(report: RankReport, reports: Sequence[RankReport]) -> bool:
    """Whether a rank that is in the script's own code has a collective before it that others have begun to wait in."""
    if meets_at(report.frames):
        return False
    begun = report.record.get("begun") or {}
    for peer in reports:
        collective = peer.record["collective"]
        if peer is report or collective is None or collective.get("group") not in begun:
            continue
        if int(begun[collective["group"]]) < int(collective["number"]):
            return True
    return False


def _is_still(report: RankReport, waiting: Sequence[RankReport]) -> bool:
    """Whether a rank that is waited for does nothing, as far as can be seen.

    Within ``batch.shards`` all ranks do the same: one line for so long is not work. Outside one may do what others do not,
    and look again and again whether a job is done, or compute at one line.
    """
    if report.state not in ("running", "late"):
        return True
    idle_s = min(report.idle_s, report.asleep_s) if _is_apart(report, waiting) else report.idle_s
    return idle_s >= LEAST_S or (report.state == "late" and idle_s > 0)


def _is_apart(report: RankReport, waiting: Sequence[RankReport]) -> bool:
    """Whether a rank is waited for outside of ``batch.shards``.

    Of a script that knows no steps, whether all others wait at a barrier: steps have other collectives.
    """
    if waits_for_loader(report.frames):  # PyTorch's own loop there wakes up now and then
        return False
    apart: bool | None = report.record["doing"].get("apart")
    return all(_is_at_barrier(peer.frames) for peer in waiting) if apart is None else apart


def _is_at_barrier(frames: Sequence[tuple[str, int, str]]) -> bool:
    return any("/torch/distributed/" in file and name in ("barrier", "monitored_barrier") for file, _, name in frames)


def _is_debugged(report: RankReport) -> bool:
    if report.facts is not None and report.facts.state == "t":
        return True
    return any(name in file for file, _, _ in report.frames for name in _DEBUGGERS)
