"""What the black box of a rank tells of it once it is dead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.explain.rank_reports import RankReport, brief, read_records
from lockstep.machine.sizes import size


def testimony(where: Path, rank: int) -> str:
    """What a rank was last seen at, with its stack; empty: it has not reported.

    Args:
        where: the run directory, or a launch's private directory.
        rank: of the process.
    """
    for record in read_records(where):
        if record["rank"] == rank and record["stack"]:
            report = RankReport(record, "running", 0.0)
            lines = [f"It was last seen {report.describe()}{memory_of(record)}:"]
            return "\n".join([*lines, *(f"  {line}" for line in brief(report.stack()))])
    return ""


def memory_of(record: Mapping[str, Any]) -> str:
    """What it had of the memory then, to stand behind something; empty: not known."""
    memory = record.get("memory", {})
    if "rss_bytes" not in memory:
        return ""
    left = f" (the machine had {size(memory['available_bytes'])} left)" if "available_bytes" in memory else ""
    return f", with {size(memory['rss_bytes'])} of memory{left}"
