"""What a dead rank was last seen doing, from its black box."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.reading import read_records
from lockstep._world.machine.sizes import size


def last_seen(directory: Path, rank: int) -> str:
    """What a rank was last seen doing, with its stack; empty: it has never reported.

    Args:
        directory: of the run, or a launch's private directory.
        rank: of the process.
    """
    for record in read_records(directory):
        if record["rank"] == rank and record["stack"]:
            report = RankReport(record, "running", 0.0)
            lines = [f"It was last seen {report.describe()}{_memory_of(record)}:"]
            return "\n".join([*lines, *(f"  {line}" for line in report.stack(short=True))])
    return ""


def _memory_of(record: Mapping[str, Any]) -> str:
    memory = record.get("memory", {})
    if "rss_bytes" not in memory:
        return ""
    left = f" (the machine had {size(memory['available_bytes'])} left)" if "available_bytes" in memory else ""
    return f", with {size(memory['rss_bytes'])} of memory{left}"
