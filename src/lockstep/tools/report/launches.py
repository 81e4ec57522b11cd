"""The launches of a run and how each ended, from its journal. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.journal.events import number_in
from lockstep.machine.sizes import counted, span
from lockstep.tools.report.chart import Bar, Bars, Mark, Segment

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
    """From one ``start`` in the journal to the next."""

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
    """The next launch repeated the steps after this time."""
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
    parts: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event["event"] == "start":
            parts.append([])
        if parts and number_in(event, "time_s") is not None:
            parts[-1].append(event)
    parts = [part for part in parts if part]
    return [
        _launch(index + 1, part, parts[index + 1] if index + 1 < len(parts) else None, is_running=is_running, now_s=now_s)
        for index, part in enumerate(parts)
    ]


def _launch(
    number: int,
    events: Sequence[Mapping[str, Any]],
    following: Sequence[Mapping[str, Any]] | None,
    *,
    is_running: bool,
    now_s: float,
) -> Launch:
    kinds = {event["event"]: event for event in events}
    is_live = is_running and following is None
    outcome = FINISHED if "end" in kinds else PREEMPTED if "preempted" in kinds else RUNNING if is_live else BROKEN
    times = [float(event["time_s"]) for event in events]
    steps = [(float(event["time_s"]), event["step"]) for event in events if _is_step(event)]
    last_step = max((step for _, step in steps), default=None)
    resume = next((event for event in following or () if event["event"] == "resume"), None)
    kept = None if resume is None else int(resume.get("step") or 0)
    lost = 0 if kept is None or last_step is None else max(0, last_step - kept)
    ended_s = max(now_s, *times) if is_live else max(times)
    kept_until_s = ended_s if not lost else max((t for t, step in steps if step <= (kept or 0)), default=times[0])
    resumed = next((event for event in events if event["event"] == "resume"), None)
    return Launch(
        number=number,
        start=events[0],
        began_s=times[0],
        ended_s=ended_s,
        outcome=outcome,
        signal=str(kinds.get("preempted", {}).get("signal") or ""),
        resumed_at=None if resumed is None else int(resumed.get("step") or 0) or None,
        last_step=last_step,
        kept_until_s=kept_until_s,
        lost_steps=lost,
        checkpoints=tuple(
            (float(event["time_s"]), event["step"]) for event in events if event["event"] == "checkpoint" and _is_step(event)
        ),
    )


def _is_step(event: Mapping[str, Any]) -> bool:
    return event["event"] != "resume" and isinstance(event.get("step"), int)


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
