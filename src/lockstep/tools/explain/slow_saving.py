"""Reports which ranks lose time in saving: see ``saving``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.tools.explain.rank_reports import read_records
from lockstep.tools.explain.saving import Lost
from lockstep.world.machine.sizes import name_ranks

_STABLE_LOOKS = 3
"""Looks at which the same ranks must have lost time in saving: they do not come to that at the same moment."""
_OTHERS_S = 3.0
"""For how long a rank that loses time in saving waits for others that do so, too."""


class SlowSaving:
    """Reports once which ranks lose time in saving, and again where others do, or elsewhere."""

    def __init__(self) -> None:
        self._told: set[tuple[int, str]] = set()
        self._before: set[tuple[int, str]] = set()
        self._num_looks = 0
        """At which the same ranks had lost time."""

    def look(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """What to report, from the newest records of all ranks: ``rank``, ``host`` and ``saving``."""
        found = {int(record["rank"]): record for record in records if record.get("saving")}
        new = {(rank, record["saving"]["line"]) for rank, record in found.items()} - self._told
        self._num_looks = self._num_looks + 1 if new == self._before else 1
        self._before = new
        if not new or self._num_looks < _STABLE_LOOKS:
            return None
        self._told |= new
        return describe([found[rank] for rank, _ in sorted(new)])


def describe(records: Sequence[Mapping[str, Any]]) -> str:
    """Which ranks lose how much time in saving, for the user; the one that loses most is shown. Pure."""
    worst = max(records, key=lambda record: record["saving"]["seconds"] / record["saving"]["every_s"])
    lost = Lost(**worst["saving"])
    how_long = f"{lost.seconds:.1f} s of each {lost.every_s:.1f} s"
    if lost.seconds < 1:
        how_long = f"{lost.seconds / lost.every_s:.0%} of the time"
    others = [int(record["rank"]) for record in records if record is not worst]
    also = f" ({name_ranks(others)} write{'s' if len(others) == 1 else ''} slowly there, too)" if others else ""
    return (
        f"rank {worst['rank']} on {worst['host']} writes slowly: {how_long}, at {lost.line}{also}. All ranks lose that time. "
        "Look at the disk or file system that it writes to; write less, less often, or from another thread."
    )


class OwnSaving:
    """What a rank that has joined a run does while it loses time in saving: the lowest of those that do reports it.

    Args:
        run_dir: of the run.
        rank: of this process.
        tell: called with the report.
    """

    def __init__(self, run_dir: Path, rank: int, tell: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._tell = tell
        self._since: dict[str, float] = {}
        """When time was first seen to be lost at a line; infinite: that was looked into."""

    def look(self, lost: Lost) -> None:
        """Called again and again, from the sampler's thread, while this is lost."""
        now = time.monotonic()
        if now - self._since.setdefault(lost.line, now) < _OTHERS_S:
            return
        self._since[lost.line] = float("inf")
        found = [record for record in read_records(self._run_dir) if record.get("saving")]
        if found and int(found[0]["rank"]) == self._rank:
            self._tell(describe(found))
