"""Processes of one launch that train, and never meet: each a model of its own, as far as PyTorch
knows. Told once, and as information, since they may be meant to."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._base.reports import ALONE, Report
from lockstep._launch.observer import Launch
from lockstep._world.machine.sizes import name_ranks

MEET_S = 60.0
"""Ranks that are to meet have done so by now: they begin with equal weights."""
_REMEDIES: Mapping[str, str] = {
    "accelerate": "On CPUs, accelerate makes them one training with ACCELERATE_USE_CPU=1 in the environment, or "
    "Accelerator(cpu=True).",
    "": "To train one model together, they need DistributedDataParallel or lockstep.join(). --nproc-per-node 1 trains once.",
}


class Alone:
    """What is known of whether the ranks of a launch have met. May be used from any thread."""

    def __init__(self, launch: Launch) -> None:
        self._dir, self._ranks = Path(launch.private_dir), tuple(launch.ranks)
        self._lock = threading.Lock()
        self._is_settled = launch.world_size < 2
        """Whether the user was told, or ranks have met."""
        self._succeeded: set[int] = set()

    def ended(self, rank: int, status: int) -> Report | None:
        """A rank has ended; returns the report, if all ranks have by now, and did so well."""
        with self._lock:
            if status == 0:
                self._succeeded.add(rank)
            return self._report_once(time.time(), is_over=True) if self._succeeded == {*self._ranks} else None

    def look(self) -> Report | None:
        """Returns the report if it is time for it."""
        with self._lock:
            return self._report_once(time.time(), is_over=False)

    def _report_once(self, now_s: float, *, is_over: bool) -> Report | None:
        if self._is_settled:
            return None
        from lockstep._tools.explain.reading import read_records  # not while the processes start

        records = read_records(self._dir)
        # (A rank that has joined a run of lockstep's has another record, which does not say.)
        self._is_settled = any(record["doing"].get("met", True) for record in records)
        is_known = [int(record["rank"]) for record in records] == sorted(self._ranks)
        trains = is_known and all(record["doing"].get("step", 0) > 0 for record in records)
        took_s = now_s - min((float(record.get("began_s", now_s)) for record in records), default=now_s)
        if self._is_settled or not trains or not (is_over or took_s >= MEET_S):
            return None
        self._is_settled = True
        return _report(records, took_s)


def _report(records: Sequence[Mapping[str, Any]], took_s: float) -> Report:
    ranks = tuple(int(record["rank"]) for record in records)
    library = str(records[0]["doing"].get("library", ""))
    return Report(
        kind=ALONE,
        text=f"{name_ranks(ranks)} have each taken optimizer steps in {took_s:.0f} s, and none has begun a collective: as "
        f"far as PyTorch knows, each trains a model of its own. {_REMEDIES.get(library, _REMEDIES[''])} If each is "
        "meant to work for itself, nothing is wrong.",
        ranks=ranks,
        cause=library,
        seconds=took_s,
        is_warning=False,
    )
