"""The launches of a run and how each ended, from its journal. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.journal import history
from lockstep.journal.events import number_in
from lockstep.tools.report.chart import Bar, Bars, Mark, Segment
from lockstep.world.machine.sizes import counted, span

FINISHED, PREEMPTED, RUNNING, BROKEN = "finished", "preempted", "running", "broken"
_TONES = {FINISHED: "good", PREEMPTED: "warn", RUNNING: "live", BROKEN: "bad"}
_LEGEND = {
    "good": "ended with the script",
    "warn": "asked to stop",
    "bad": "killed or failed",
    "live": "running",
    "lost": "done again after it",
}
_GAP = 0.04
"""The largest part of the picture that a pause between two launches takes: it may have lasted for days."""
_MOST_ROWS = 24
_MOST_TICKS = 60


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch as it is shown."""

    number: int
    """From 1."""
    start: Mapping[str, Any]
    began_s: float
    ended_s: float
    """Time of its last event."""
    outcome: str
    signal: str = ""
    """The signal that asked it to stop."""
    resumed_at: int | None = None
    """The step after which it resumed; None: it began at the start."""
    last_step: int | None = None
    kept_until_s: float
    """Later launches repeated the steps after this time."""
    lost_steps: int = 0
    checkpoints: tuple[tuple[float, int], ...] = ()
    """The time and step of each."""

    @property
    def world_size(self) -> int | None:
        """Its number of processes."""
        size = self.start.get("world_size")
        return size if isinstance(size, int) else None

    def describe(self) -> str:
        """How it ended, in words."""
        at = "" if self.last_step is None else f" at step {self.last_step:,}"
        words = {
            FINISHED: f"finished{at}",
            PREEMPTED: f"stopped by {self.signal or 'a signal'}{at}",
            RUNNING: f"running{at}",
            BROKEN: f"killed or failed{at or ' before its first step'}",
        }[self.outcome]
        return f"{words}, {self.lost_steps:,} steps done again" if self.lost_steps else words


def launches_of(events: Sequence[Mapping[str, Any]], *, is_running: bool, now_s: float) -> list[Launch]:
    """The launches in a journal, in order.

    Args:
        events: all of them, repeated steps as well.
        is_running: whether a process holds the run now: then the last launch is still active.
        now_s: seconds since 1970.
    """
    found = [launch for launch in history.launches(events) if launch.start and launch.times_s]
    return [
        _launch(number, launch, now_s if is_running and launch is found[-1] else None)
        for number, launch in enumerate(found, start=1)
    ]


def _launch(number: int, launch: history.Launch, now_s: float | None) -> Launch:
    """A launch; ``now_s``: it is still active."""
    preempted, last_step, until = launch.last("preempted"), launch.last_step, launch.counts_until
    outcome = RUNNING if now_s is not None else BROKEN
    outcome = FINISHED if launch.last("end") else PREEMPTED if preempted else outcome
    steps = list(_steps(launch.events))
    lost = 0 if last_step is None else max(0, last_step - int(max(min(until, last_step), launch.resumed_after or 0)))
    began_s, ended_s = launch.times_s[0], max([*launch.times_s, *([] if now_s is None else [now_s])])
    return Launch(
        number=number,
        start=launch.start,
        began_s=began_s,
        ended_s=ended_s,
        outcome=outcome,
        signal=str((preempted or {}).get("signal") or ""),
        resumed_at=launch.resumed_after or None,
        last_step=last_step,
        kept_until_s=ended_s if not lost else max((time_s for time_s, step in steps if step <= until), default=began_s),
        lost_steps=lost,
        checkpoints=tuple(_steps(event for event in launch.events if event["event"] == "checkpoint")),
    )


def _steps(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, int]]:
    """The time and the step of each event that has both."""
    for event in events:
        time_s, step = number_in(event, "time_s"), event.get("step")
        if event["event"] != "resume" and time_s is not None and isinstance(step, int):
            yield time_s, step


def time_line(launches: Sequence[Launch]) -> Bars | None:
    """A row per launch on a common time axis, with pauses cut short; None: there are no launches."""
    shown = launches[-_MOST_ROWS:]
    if not shown:
        return None
    ran_s = sum(launch.ended_s - launch.began_s for launch in shown) or 1.0
    pauses_s = [later.began_s - earlier.ended_s for earlier, later in itertools.pairwise(shown)]
    starts = [0.0]
    for launch, pause_s in zip(shown, pauses_s, strict=False):
        starts.append(starts[-1] + launch.ended_s - launch.began_s + min(max(0.0, pause_s), _GAP * ran_s))
    whole = starts[-1] + shown[-1].ended_s - shown[-1].began_s or 1.0
    later = ["", *(f", {span(pause_s)} later" for pause_s in pauses_s)]
    rows = [_row(*row, whole=whole) for row in zip(shown, starts, later, strict=True)]
    left_out = len(launches) - len(shown)
    note = f"The {left_out} launches before are not drawn. " if left_out else ""
    note += "Small marks: checkpoints." + (" Pauses between launches are cut short." if pauses_s else "")
    used = {segment.tone for row in rows for segment in row.segments}
    return Bars(
        title="Time line",
        description=f"{len(launches)} launches: {'; '.join(f'{row.label}: {row.value}' for row in rows)}.",
        bars=tuple(rows),
        legend={tone: text for tone, text in _LEGEND.items() if tone in used},
        note=note,
    )


def _row(launch: Launch, start: float, later: str, *, whole: float) -> Bar:
    def position(time_s: float) -> float:
        return 100 * (start + time_s - launch.began_s) / whole

    from_step = f", from step {launch.resumed_at:,}" if launch.resumed_at else ""
    processes = "" if launch.world_size is None else f": {counted(launch.world_size, 'process', 'processes')}"
    kept, end = position(launch.kept_until_s), position(launch.ended_s)
    took = span(launch.ended_s - launch.began_s)
    segments = [
        Segment(
            start=position(launch.began_s),
            length=max(0.4, kept - position(launch.began_s)),
            tone=_TONES[launch.outcome],
            title=f"launch {launch.number}: {launch.describe()}, after {took}",
        )
    ]
    if launch.lost_steps and end > kept:
        segments.append(
            Segment(start=kept, length=end - kept, tone="lost", title=f"{launch.lost_steps:,} steps, done again later")
        )
    every = -(-len(launch.checkpoints) // _MOST_TICKS) or 1
    marks = [Mark(position(time_s), f"checkpoint of step {step:,}") for time_s, step in launch.checkpoints[::every]]
    return Bar(
        label=f"{launch.number}{processes}{from_step}{later}",
        value=f"{launch.describe()}, {took}",
        segments=tuple(segments),
        ticks=tuple(marks),
    )
