"""The launches of a run and how each ended, from its journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.measure.events import number_in
from lockstep.report.chart import Bar, Bars, Mark, Segment

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
"""The most that a pause between two launches takes of the picture: it may have lasted for days."""
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
    """What it was asked to stop by."""
    resumed_at: int | None = None
    """The step after which it went on; None: it was the first, or started over."""
    last_step: int | None = None
    kept_until_s: float
    """What it did after this was done again by the next launch."""
    lost_steps: int = 0
    checkpoints: tuple[tuple[float, int], ...] = ()
    """When one was written, and of which step."""

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
        events: all of them: what was done again as well.
        is_running: whether a process holds the run now: then the last launch goes on.
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
    place: int,
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
        number=place,
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


def time_line(launches: Sequence[Launch], span: Any) -> Bars | None:
    """A row a launch, over a common time; pauses between them are cut short. None: there was none.

    Args:
        launches: in order.
        span: a duration in words.
    """
    shown = launches[-_MOST_ROWS:]
    if not shown:
        return None
    ran_s = sum(launch.ended_s - launch.began_s for launch in shown) or 1.0
    starts, at = [], 0.0
    for index, launch in enumerate(shown):
        pause_s = max(0.0, launch.began_s - shown[index - 1].ended_s) if index else 0.0
        at += min(pause_s, _GAP * ran_s)
        starts.append(at)
        at += launch.ended_s - launch.began_s
    whole = at or 1.0
    rows = []
    for index, (launch, start) in enumerate(zip(shown, starts, strict=True)):
        pause_s = launch.began_s - shown[index - 1].ended_s if index else 0.0
        rows.append(_row(launch, start, whole, f", {span(pause_s)} later" if index else "", span))
    left_out = len(launches) - len(shown)
    note = f"The {left_out} launches before are not drawn. " if left_out else ""
    note += (
        "Small marks: checkpoints. Pauses between launches are cut short." if len(shown) > 1 else "Small marks: checkpoints."
    )
    used = {segment.tone for row in rows for segment in row.segments}
    return Bars(
        title="Time line",
        description=f"{len(launches)} launches: {'; '.join(f'{row.label}: {row.value}' for row in rows)}.",
        bars=tuple(rows),
        legend={tone: text for tone, text in _LEGEND.items() if tone in used},
        note=note,
    )


def _row(launch: Launch, start: float, whole: float, later: str, span: Any) -> Bar:
    def place(time_s: float) -> float:
        return 100 * (start + time_s - launch.began_s) / whole

    from_step = f", from step {launch.resumed_at:,}" if launch.resumed_at else ""
    size = launch.world_size
    processes = "" if size is None else f": {size} process{'es' if size != 1 else ''}"
    kept, end = place(launch.kept_until_s), place(launch.ended_s)
    took = span(launch.ended_s - launch.began_s)
    segments = [
        Segment(
            start=place(launch.began_s),
            length=max(0.4, kept - place(launch.began_s)),
            tone=_TONES[launch.outcome],
            title=f"launch {launch.number}: {launch.describe()}, after {took}",
        )
    ]
    if launch.lost_steps and end > kept:
        segments.append(
            Segment(start=kept, length=end - kept, tone="lost", title=f"{launch.lost_steps:,} steps, done again later")
        )
    every = -(-len(launch.checkpoints) // _MOST_TICKS) or 1
    marks = [Mark(place(time_s), f"checkpoint of step {step:,}") for time_s, step in launch.checkpoints[::every]]
    return Bar(
        label=f"{launch.number}{processes}{from_step}{later}",
        value=f"{launch.describe()}, {took}",
        segments=tuple(segments),
        ticks=tuple(marks),
    )
