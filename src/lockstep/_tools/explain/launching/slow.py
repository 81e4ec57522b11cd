"""Slow ranks of a launch, from this machine's black boxes (``slow_scripts`` finds them)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockstep._base.reports import Report
from lockstep._launch.observer import Launch
from lockstep._tools.explain.reading import read_records, run_joined
from lockstep._tools.explain.slow_scripts import SlowScripts

_SELDOM = 4
"""The number of looks per reading of the records, whose samples are in blocks of many seconds."""


class SlowWatch:
    """Looks for slow ranks.

    Args:
        launch: the launch that is watched.
        publish: prints and notes a report.
    """

    def __init__(self, launch: Launch, publish: Callable[[Report], None]) -> None:
        self._dir, self._ranks = Path(launch.private_dir), frozenset(launch.ranks)
        self._publish = publish
        self._scripts = SlowScripts()
        self._looks = 0

    def look(self) -> None:
        """Called again and again."""
        self._looks += 1
        if self._looks % _SELDOM:
            return
        joined = run_joined(self._dir)
        records = [record for record in read_records(joined or self._dir) if record["rank"] in self._ranks]
        if any(record["ended"] is not None or "status" in record for record in records):
            return
        for report in self._scripts.look(records, are_scripts=joined is None):
            self._publish(report)
