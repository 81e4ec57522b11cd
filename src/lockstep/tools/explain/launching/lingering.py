"""What keeps workers from ending whose program is over, in words, from their black boxes."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.base.stopping import say
from lockstep.base.tracebacks.frames import users_location
from lockstep.tools.explain.rank_reports import RankReport, grouped, read_reports
from lockstep.world.machine.sizes import name_ranks

_REMEDIES: Mapping[str, str] = {
    "thread": "Python waits for such a thread: let it end with the script (an event, a None in its queue), or start it with "
    "daemon=True.",
    "executor": "Python waits for the calls of executors: let them end with the script.",
    "child": "Python waits for such a child: let it end with the script, or start it with daemon=True.",
    "program": "An exit handler waits for it: end it with the script (terminate()).",
    "queue": "Python waits until somebody has read it: empty the queue, or call its cancel_join_thread().",
}


def held(private_dir: Path, ranks: Collection[int]) -> set[int]:
    """See ``lockstep.launch.observer.Observer``."""
    reports = [report for report in read_reports(private_dir, time.time(), asks=False) if report.rank in ranks]
    return {report.rank for report in reports if report.state in ("late", "stopped") or _is_held(report)}


def tell(private_dir: Path, at_work: Mapping[int, bool], *, in_full: bool) -> set[int]:
    """See ``linger`` of ``lockstep.launch.observer.Observer``."""
    reports = read_reports(private_dir, time.time())
    groups = grouped([report for report in reports if report.rank in at_work and _is_held(report)])
    for group in groups:
        is_idle = not any(at_work[report.rank] for report in group)
        say(f"WARNING: {_in_words(group, is_idle=is_idle)}" if in_full else _in_a_line(group))
    return {report.rank for group in groups for report in group}


def _is_held(report: RankReport) -> bool:
    """Whether something else keeps it than closing its run, or waiting for other ranks."""
    kinds = {str(holder["kind"]) for holder in report.ending.get("holders", ())}
    return not report.is_waiting and bool(kinds - {"closing"})


def _in_a_line(group: Sequence[RankReport]) -> str:
    first = group[0].ending["holders"][0]
    location = users_location([(str(file), int(line), str(name)) for file, line, name in first["stack"]])
    names, whose = name_ranks([report.rank for report in group]), "its" if len(group) == 1 else "their"
    verb = "is" if len(group) == 1 else "are"
    at = f", at {location}" if location else ""
    return f"{names} {verb} still ending, {group[0].ending_s:.0f} s after {whose} script: {first['what']} is at work{at}"


def _in_words(group: Sequence[RankReport], *, is_idle: bool) -> str:
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
