"""What ``lockstep watch`` shows, read from a run's directory. Nothing is written there, and no process is asked."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.base.shapes import check
from lockstep.journal.events import FILE_NAME, repeated_after
from lockstep.journal.measure.pass_progress import PassProgress
from lockstep.journal.tail import Tail
from lockstep.state.rundir.lock import holder_of
from lockstep.tools.explain.rank_reports import RankReport, read_reports
from lockstep.tools.runs.inventory import RUNNING, read_run

_MOST_POINTS = 2048
_MOST_EVENTS = 8
_FRESH_S = 6.0
"""A black box that was written more recently is that of a live process."""

Point = tuple[int, float]
"""A step, and a value."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run at one moment."""

    name: str
    state: str
    """As in ``lockstep runs``."""
    now_s: float
    """Seconds since 1970, as are all points in time."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """The event ``start`` of the newest launch."""
    progress: PassProgress | None = None
    """Rank 0's; None: no pass has begun."""
    progress_s: float = 0.0
    """When that was written."""
    step: int | None = None
    samples_per_s: float | None = None
    curve_name: str = ""
    curve: Sequence[Point] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    """The newest of each name."""
    reports: Sequence[RankReport] = ()
    events: Sequence[Mapping[str, Any]] = ()
    """The last ones worth a line."""
    checkpoint: Mapping[str, Any] | None = None
    """The newest event ``checkpoint``."""


class Watched:
    """A run whose directory is polled."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._tail = Tail(run_dir / FILE_NAME)
        self._forget()

    def _forget(self) -> None:
        self._start: Mapping[str, Any] = {}
        self._curves: dict[str, list[Point]] = {}
        self._values: dict[str, float] = {}
        self._events: deque[Mapping[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self._checkpoint: Mapping[str, Any] | None = None
        self._rate: float | None = None
        self._step: int | None = None

    def look(self, now_s: float) -> Snapshot:
        """The run now."""
        events, is_replaced = self._tail.read()
        if is_replaced:
            self._forget()
        for event in events:
            self._take(event)
        reports = read_reports(self.run_dir, now_s, asks=False)
        is_alive = holder_of(self.run_dir) is not None or any(
            report.state == "running" and report.late_s < _FRESH_S for report in reports
        )
        progress, progress_s, step = _progress_of(reports)
        name = _choose(self._curves)
        rate = progress.samples_per_s(progress_s) if progress is not None else None
        return Snapshot(
            name=self.run_dir.absolute().name,
            state=RUNNING if is_alive else read_run(self.run_dir).state,
            now_s=now_s,
            start=self._start,
            progress=progress,
            progress_s=progress_s,
            step=max((number for number in (step, self._step) if number is not None), default=None),
            samples_per_s=self._rate if rate is None else rate,
            curve_name=name,
            curve=self._curves.get(name, []),
            values=self._values,
            reports=reports,
            events=list(self._events),
            checkpoint=self._checkpoint,
        )

    def _take(self, event: dict[str, Any]) -> None:
        kind, step = event["event"], event.get("step")
        if isinstance(step, int):
            self._step = step
        if kind == "start":
            self._start = event
        elif (until := repeated_after(event)) is not None:
            for name, curve in self._curves.items():
                self._curves[name] = [point for point in curve if point[0] <= until]
        elif kind in ("step", "evaluate") and isinstance(step, int) and isinstance(event.get("values"), dict):
            for name, value in event["values"].items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    self._values[name] = value
                    add_point(self._curves.setdefault(name if kind == "step" else f"evaluation {name}", []), (step, value))
        elif kind == "checkpoint":
            self._checkpoint = event if event.get("kind") != "weights" else self._checkpoint
        elif kind == "epoch" and (event.get("wall_s") or 0) > 0:
            self._rate = event.get("num_samples", 0) / event["wall_s"]
        if kind not in ("step", "checkpoint"):
            self._events.append(event)


def add_point(curve: list[Point], point: Point) -> None:
    """Append a point. Once a curve is long, each pair of its points is replaced by their mean."""
    curve.append(point)
    if len(curve) >= _MOST_POINTS:
        pairs = zip(curve[::2], curve[1::2], strict=False)
        curve[:] = [(second[0], (first[1] + second[1]) / 2) for first, second in pairs]


def _choose(curves: Mapping[str, object]) -> str:
    """The name of the curve to draw: the loss, if there is one."""
    return min(curves, key=lambda name: (name != "loss", name.startswith("evaluation "), "loss" not in name), default="")


def _progress_of(reports: Sequence[RankReport]) -> tuple[PassProgress | None, float, int | None]:
    """The progress of the lowest rank that reports, when it was written, and its step."""
    for report in reports:
        doing = report.record["doing"]
        try:
            progress = check(PassProgress(**doing["pass"])) if doing.get("pass") else None
        except (TypeError, ValueError):  # of another version
            progress = None
        return progress, float(report.record["time_s"]), doing.get("step")
    return None, 0.0, None
