"""Processes of one launch that train and never communicate, so that each trains a separate model as
far as PyTorch knows. Reported once, and not as a warning, since it may be intended."""

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
"""The seconds within which ranks that train together have communicated: they begin by making
their weights equal."""
_REMEDIES: Mapping[str, str] = {
    "accelerate": "On CPUs, accelerate connects them only with ACCELERATE_USE_CPU=1 in the environment, or "
    "Accelerator(cpu=True).",
    "": "To train one model together, use DistributedDataParallel or lockstep.join(). To train once, use --nproc-per-node 1.",
}


class Alone:
    """What is known of whether the ranks of a launch have met. May be used from any thread."""

    def __init__(self, launch: Launch) -> None:
        self._dir, self._ranks = Path(launch.private_dir), tuple(launch.ranks)
        self._lock = threading.Lock()
        self._is_settled = launch.world_size < 2
        """Whether nothing is left to report: the report was made, or ranks have met."""
        self._succeeded: set[int] = set()

    def ended(self, rank: int, status: int) -> Report | None:
        """Notes that a rank has exited; returns the report if all ranks have, with status 0."""
        with self._lock:
            if status == 0:
                self._succeeded.add(rank)
            return self._report_once(time.time(), is_over=True) if self._succeeded == {*self._ranks} else None

    def look(self) -> Report | None:
        """Returns the report if it is due."""
        with self._lock:
            return self._report_once(time.time(), is_over=False)

    def _report_once(self, now_s: float, *, is_over: bool) -> Report | None:
        if self._is_settled:
            return None
        from lockstep._tools.explain.reading import read_records  # not while the processes start

        records = read_records(self._dir)
        # A rank that has joined a run has another record, without the field: it has met the others.
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
        text=f"{name_ranks(ranks)} have each taken optimizer steps in {took_s:.0f} s, and none has called a collective, so "
        f"each seems to train a separate model. {_REMEDIES.get(library, _REMEDIES[''])} If the processes are meant to be "
        "independent, ignore this.",
        ranks=ranks,
        cause=library,
        seconds=took_s,
        is_warning=False,
    )
