"""Whether a report identifies a fault: by the fields of lockstep's reports, or by the text that
another launcher printed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _faults import Fault

NAMED, LATE, WRONG, HALF, SILENT = "named", "late", "wrong", "half", "silent"
"""With rank and cause, in time; after that; with another rank or cause first; the rank alone; not
at all."""
_ECHOES = re.compile(r"^PeerError|Timed out waiting|Connection (closed|reset) by peer")
"""A rank that fails so blames no one: another one did not come. That is no answer, and not a wrong
one."""
_NEAR = 12
"""Lines of output between the name of the rank and the cause."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a fault."""

    how: str
    seconds: float | None = None
    """From when the fault showed."""
    said: str = ""
    """Of a wrong or a half one: what was reported."""

    @property
    def cell(self) -> str:
        """In a table."""
        time = "" if self.seconds is None else f"{self.seconds:.1f} s"
        return " ".join(filter(None, ["" if self.how == NAMED else f"{self.how},", time, self.said])).strip(",")


def judged(reports: Sequence[Mapping[str, Any]], fault: Fault, fault_at: float) -> Verdict:
    """What the reports of a launch say of a fault that showed at ``fault_at``.

    The first report that names it counts, unless another one before it was wrong. One that names
    the rank without the cause, or neither, is not wrong.
    """
    half = None
    for report in reports:
        how, seconds = _how(report, fault), float(report["time_s"]) - fault_at
        if how == NAMED:
            return Verdict(NAMED if seconds <= fault.limit_s else LATE, seconds)
        if how == WRONG:
            return Verdict(WRONG, seconds, _briefly(report))
        if half is None and how == HALF:
            half = Verdict(HALF, seconds, _briefly(report))
    return half or Verdict(SILENT)


def _how(report: Mapping[str, Any], fault: Fault) -> str:
    about = set(report["ranks"])
    if report["kind"] == "failed" and fault.fails_on_all:
        return NAMED if re.search(fault.error, report["text"]) else HALF
    if report["kind"] == "failed" and about != {fault.rank} and _ECHOES.search(report["text"]):
        return SILENT
    if report["kind"] not in fault.kinds:
        return WRONG
    if fault.is_of_all:
        is_right = about in (set(), set(range(fault.nproc)))
    elif report["kind"] in ("mismatch", "parted"):
        # All of them wait, or left: it must say what the culprit did, and what another one does.
        is_right = about == {fault.rank} or (about in (set(), set(range(fault.nproc))) and _differ(report, fault))
    else:
        is_right = about == {fault.rank}
    if not is_right:
        return WRONG if about - {fault.rank} and about != set(range(fault.nproc)) else HALF
    if report["cause"] and fault.cause and not re.search(fault.cause, report["cause"]):
        return WRONG
    place = str(report["places"].get(str(fault.rank), ""))
    call = str(report["calls"].get(str(fault.rank), ""))
    has_all = (
        (not fault.cause or bool(report["cause"]))
        and (not fault.place or f"in {fault.place}" in place)
        and (not fault.call or re.search(fault.call, call) is not None)
        and (not fault.error or re.search(fault.error, report["text"]) is not None)
    )
    return NAMED if has_all else HALF


def _differ(report: Mapping[str, Any], fault: Fault) -> bool:
    """Returns whether a report has the culprit's call or place, and another one for some other
    rank."""
    for field in ("calls", "places"):
        own = report[field].get(str(fault.rank))
        if own and any(other != own for rank, other in report[field].items() if rank != str(fault.rank)):
            return True
    return False


def _briefly(report: Mapping[str, Any]) -> str:
    places = [f"{rank}:{Path(place).name}" for rank, place in report["places"].items() if int(rank) in report["ranks"]]
    return f"({' '.join(filter(None, [report['kind'], ','.join(map(str, report['ranks'])), report['cause'], *places]))})"


def names(text: str, fault: Fault) -> bool:
    """Returns whether the rank and the cause are next to each other in the output of a launcher
    without reports."""
    rank = re.compile(rf"\branks?\W{{0,12}}{fault.rank}\b|\bR{fault.rank}/N0 (waited|was)")
    lines = text.splitlines()
    ranks = [number for number, line in enumerate(lines) if rank.search(line)]
    causes = [number for number, line in enumerate(lines) if re.search(fault.said, line)]
    return any(abs(one - other) <= _NEAR for one in ranks for other in causes)
