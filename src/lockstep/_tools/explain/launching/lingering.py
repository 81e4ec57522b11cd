"""What keeps workers from exiting after their script has finished, from their black boxes."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._base.reports import LINGERING, Report, publish
from lockstep._tools.explain.exit_blockers import CHILD, CLOSING, THREAD
from lockstep._tools.explain.frames import users_location
from lockstep._tools.explain.rank_reports import RankReport, grouped
from lockstep._tools.explain.reading import read_reports
from lockstep._world.machine.sizes import name_ranks

_REMEDIES: Mapping[str, str] = {
    THREAD: "Python waits for non-daemon threads. Stop the thread when the script ends (an event, a None in its queue), or "
    "start it with daemon=True.",
    CHILD: "Python waits for child processes. Stop it when the script ends, or start it with daemon=True.",
}


def report_lingering(private_dir: Path, ranks: Collection[int]) -> set[int]:
    """Reports what keeps these ranks from exiting; returns the ranks that something of the script
    keeps."""
    reports = read_reports(private_dir, time.time())
    groups = grouped([report for report in reports if report.rank in ranks and _is_held(report)])
    for group in groups:
        publish(
            Report(
                kind=LINGERING,
                text=_describe(group),
                ranks=tuple(report.rank for report in group),
                cause=str(group[0].ending["holders"][0]["kind"]),
                places={report.rank: at for report in group if (at := _held_at(report))},
                seconds=group[0].ending_s,
            )
        )
    return {report.rank for group in groups for report in group}


def _is_held(report: RankReport) -> bool:
    """Whether the rank is kept by more than closing its run, or waiting for other ranks."""
    kinds = {str(holder["kind"]) for holder in report.ending.get("holders", ())}
    return not report.is_waiting and bool(kinds - {CLOSING})


def _held_at(report: RankReport) -> str:
    """The line of the user's code that keeps the rank; empty: none does."""
    return users_location([(str(file), int(line), str(name)) for file, line, name in report.ending["holders"][0]["stack"]])


def _describe(group: Sequence[RankReport]) -> str:
    first = group[0]
    holders: Sequence[Mapping[str, Any]] = first.ending["holders"]
    names = name_ranks([report.rank for report in group])
    verb = "does" if len(group) == 1 else "do"
    kind, what = holders[0]["kind"], holders[0]["what"]
    whose = "Its" if len(group) == 1 else "Their"
    return "\n".join(
        [
            f"{names} {verb} not exit because of {what}. {whose} script finished {first.ending_s:.0f} s ago.",
            *(f"  {line}" for line in first.stack(short=True) if line != what),
            f"{_REMEDIES.get(kind, '')} Press Ctrl-C or send SIGTERM to end the run.".strip(),
        ]
    )
