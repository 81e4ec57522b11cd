"""What ``lockstep watch`` shows, read from a run's directory. Nothing is written there, and no
process is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._base.shapes import check
from lockstep._events.format import FILE_NAME
from lockstep._events.history import Tail
from lockstep._events.measure.pass_progress import PassProgress
from lockstep._state.rundir.lock import holder_of
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.explain.reading import read_reports
from lockstep._tools.runs.inventory import RUNNING, read_run

_FRESH_S = 6.0
"""The age in seconds up to which a black box belongs to a live process."""


class Watched:
    """A run whose directory is polled: what is known of it since the latest look. Points in time
    are in seconds since 1970."""

    def __init__(self, run_dir: Path) -> None:
        self.name = run_dir.absolute().name
        self.state, self.now_s = "", 0.0
        """The state as in ``lockstep runs``, and the time of the latest look."""
        self.progress: PassProgress | None = None
        """The progress of rank 0; None: no pass has begun."""
        self.samples_per_s: float | None = None
        self.reports: Sequence[RankReport] = ()
        self._run_dir, self._tail = run_dir, Tail(run_dir / FILE_NAME)
        self._forget()

    def _forget(self) -> None:
        self.start: Mapping[str, Any] = {}
        """The event ``start`` of the newest launch."""
        self.values: dict[str, float | None] = {}
        """The newest value of each name that the script logged; None: it is not finite."""
        self.has_ended = False
        """Whether the script of the newest launch has finished."""
        self.checkpoint: Mapping[str, Any] | None = None
        """The newest event ``checkpoint``."""
        self.step: int | None = None

    def look(self, now_s: float) -> None:
        """Updates everything from the run's files."""
        self.now_s = now_s
        events, is_replaced = self._tail.read()
        if is_replaced:
            self._forget()
        for event in events:
            self._take(event)
        self.reports = read_reports(self._run_dir, now_s)
        is_alive = holder_of(self._run_dir) is not None or any(
            report.state == "running" and report.late_s < _FRESH_S for report in self.reports
        )
        self.state = RUNNING if is_alive else read_run(self._run_dir).state
        self.progress = None
        if self.reports:
            self._take_record(self.reports[0].record)

    def _take_record(self, record: Mapping[str, Any]) -> None:
        doing = record["doing"]
        with contextlib.suppress(TypeError, ValueError):  # of another version
            self.progress = check(PassProgress(**doing["pass"])) if doing.get("pass") else None
        if self.progress is not None:
            self.samples_per_s = self.progress.samples_per_s(float(record["time_s"])) or self.samples_per_s
        if isinstance(step := doing.get("step"), int):
            self.step = max(step, self.step or 0)

    def _take(self, event: dict[str, Any]) -> None:
        kind, step = event["event"], event.get("step")
        if isinstance(step, int):
            self.step = step
        if kind == "start":
            self.start = event
        elif kind in ("step", "evaluate") and isinstance(event.get("values"), dict):
            self.values |= event["values"]
        elif kind == "checkpoint":
            self.checkpoint = event if event.get("kind") != "weights" else self.checkpoint
        elif kind == "epoch" and (event.get("wall_s") or 0) > 0:
            self.samples_per_s = event.get("num_samples", 0) / event["wall_s"]
        if kind not in ("step", "checkpoint"):
            self.has_ended = kind == "end"
