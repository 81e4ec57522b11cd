"""Reads what the ranks of a run are doing from their black boxes, and asks the kernel about ranks
that do not move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep._base.shapes import fits
from lockstep._tools.explain.black_box import DIRECTORY, read_box
from lockstep._tools.explain.file_locks import awaited_lock
from lockstep._tools.explain.interpreter import holds_lock, stack_now
from lockstep._tools.explain.loader_workers import with_stack_now
from lockstep._tools.explain.process import facts_of, state_of
from lockstep._tools.explain.rank_reports import ALIVE, STILL_S, RankReport
from lockstep._tools.explain.record import Record
from lockstep._tools.explain.sampler import EVERY_S
from lockstep._world.machine.identity import shared_by

LATE_S = 6 * EVERY_S
_LATE_ELSEWHERE_S = 30.0
"""The age from which a record shows that a process of another machine has stopped reporting: a
shared file system may return old content."""
_MOST_ASKED = 4
"""The number of ranks whose present stack is asked for in one look."""


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """The newest record of each rank of a run's latest launch, in rank order.

    ``run_dir`` may also be a launch's private directory: ranks that have joined a run are then
    looked up in the run's."""
    records = [record for path in (run_dir / DIRECTORY).glob("rank-*.box") if (record := _read(path)) is not None]
    if any("program" in record for record in records):
        records = [(_read(Path(record["joined"])) or record) if "joined" in record else record for record in records]
    elif records:
        # an earlier one may have had more ranks
        newest = max(records, key=lambda record: float(record.get("began_s", 0.0)))
        records = [record for record in records if record.get("launch") == newest.get("launch")]
    return sorted(records, key=lambda record: int(record["rank"]))


def _read(path: Path) -> dict[str, Any] | None:
    record = read_box(path)
    return record if fits(record, Record) else None


def run_joined(private_dir: Path) -> Path | None:
    """The directory of the run that a launch's ranks have joined; None: some have not, or they have
    joined several."""
    records = [_read(path) or {} for path in (private_dir / DIRECTORY).glob("rank-*.box")]
    joined = {str(Path(record["joined"]).parents[1]) if "joined" in record else "" for record in records}
    return Path(min(joined)) if len(joined) == 1 and joined != {""} else None


def read_reports(run_dir: Path, now_s: float) -> list[RankReport]:
    """What the ranks of a run's latest launch are doing, in rank order.

    Args:
        run_dir: of the run, or a launch's private directory.
        now_s: seconds since 1970.
    """
    reports = [_report(record, now_s) for record in _with_workers_now(read_records(run_dir), now_s)]
    held = [report for report in reports if report.holds_lock]
    now = {report.rank: frames for report in held[:_MOST_ASKED] if (frames := stack_now(report.record))}
    ranks = {int(report.record["pid"]): report.rank for report in reports if report.is_here}
    return [
        replace(report, record={**report.record, "stack": now[report.rank], "collective": None}, is_now=True)
        if report.rank in now
        else report
        if report.lock is None
        else replace(report, held_by=ranks.get(report.lock.holder))
        for report in reports
    ]


def _with_workers_now(records: Sequence[Mapping[str, Any]], now_s: float) -> list[Mapping[str, Any]]:
    """The records, with the present stacks of this machine's loader workers that do not answer."""
    found: list[Mapping[str, Any]] = []
    asked = 0
    for record in records:
        workers = record.get("workers", ())
        if not workers or asked == _MOST_ASKED or not record["machine"] or record["machine"] != shared_by("pid"):
            found.append(record)
            continue
        asked += 1
        found.append({**record, "workers": [with_stack_now(worker, now_s) for worker in workers[:_MOST_ASKED]]})
    return found


def _report(record: Mapping[str, Any], now_s: float) -> RankReport:
    late_s = max(0.0, now_s - float(record["time_s"]) - EVERY_S)
    is_here = bool(record["machine"]) and record["machine"] == shared_by("pid")
    pid = int(record["pid"])
    state = state_of(pid, float(record["time_s"])) if is_here else "running"
    if record["ended"] is not None:
        facts = facts_of(pid) if is_here and state != "gone" else None
        return RankReport(record, record["ended"], late_s, is_here, facts)
    if "status" in record or state == "gone":
        return RankReport(record, _state_at_end(record), late_s, is_here)
    if state == "running" and late_s > (LATE_S if is_here else _LATE_ELSEWHERE_S):
        held = is_here and holds_lock(record, late_s + EVERY_S)
        return RankReport(record, "late", late_s, is_here, facts_of(pid) if is_here else None, held)
    report = RankReport(record, state, late_s, is_here)
    if not is_here or state not in ALIVE or report.still_s < STILL_S or report.is_waiting:
        return report
    return replace(report, facts=facts_of(pid), lock=awaited_lock(pid, record.get("awaits", {}).get("file", "")))


def _state_at_end(record: Mapping[str, Any]) -> str:
    """The state of a process that has exited."""
    status = record.get("status")
    if status is None:
        return "finished" if "ending" in record else "gone"
    return "gone" if status < 0 else "failed" if status else "finished"
