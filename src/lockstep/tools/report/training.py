"""What a run's journal tells of its training: curves, speed, where the time went, slow ranks. Pure.

All functions take the history of a run (``journal.history``), and pass over what they cannot read.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.journal.events import moved_shards, number_in
from lockstep.journal.measure.split import ACTIVITIES, PARTS, verdict
from lockstep.tools.compare.figures import Split, pace_of, splits_of
from lockstep.tools.report import chart
from lockstep.tools.report.chart import Bar, Bars, Lines, Mark, Series, Table
from lockstep.tools.report.thin import MOST_POINTS, thin

Events = Sequence[Mapping[str, Any]]
Pairs = list[tuple[float, float | None]]

_MOST_CURVES = 150
_ALL_POINTS = 6_000
"""Of all curves together, which keeps a page below a megabyte."""
_FEWEST = 24
_MOST_RANKS = 16
_MOST_SLOW = 50


def values_of(events: Events, kind: str) -> dict[str, Pairs]:
    """The pairs of step and value of each name, of the events ``step`` or ``evaluate``."""
    pairs: dict[str, Pairs] = defaultdict(list)
    for event in events:
        step, values = number_in(event, "step"), event.get("values")
        if event["event"] != kind or step is None or not isinstance(values, Mapping):
            continue
        for name in values:
            pairs[str(name)].append((step, number_in(values, name)))
    return dict(pairs)


def passes_of(events: Events) -> list[Mapping[str, Any]]:
    """Passes over a training loader that have ended."""
    return [event for event in events if event["event"] == "epoch" and number_in(event, "step") is not None]


def curves(events: Events) -> tuple[list[Lines], list[str]]:
    """A picture for each name that was logged, with evaluation results of the same name in it; and names not drawn."""
    trained, evaluated = values_of(events, "step"), values_of(events, "evaluate")
    names = list(dict.fromkeys((*trained, *evaluated)))
    drawn, most = names[:_MOST_CURVES], points_each(min(len(names), _MOST_CURVES))
    epochs = [Mark(float(event["step"]), f"end of epoch {_epoch(event)}") for event in passes_of(events)]
    resumes = [Mark(step, f"{step:,.0f}") for event in events if (step := _resumed_after(event))]
    pictures = []
    for name in drawn:
        series = [
            Series(name="training", curve=thin(trained.get(name, ()), most), tone="training"),
            Series(name="evaluation", curve=thin(evaluated.get(name, ()), most), tone="evaluation", has_dots=True),
        ]
        picture = chart.lines(name, series, x_name="step", epochs=epochs, resumes=resumes)
        if picture is not None:
            pictures.append(picture)
    shown = {picture.title for picture in pictures}
    return pictures, [name for name in names if name not in shown]


def _resumed_after(event: Mapping[str, Any]) -> float | None:
    return number_in(event, "step") if event["event"] == "resume" else None


def points_each(num_curves: int) -> int:
    """How many points each of so many curves may have."""
    return max(_FEWEST, min(MOST_POINTS, _ALL_POINTS // max(1, num_curves)))


def speed(events: Events) -> Lines | None:
    """Samples a second in each pass; None: there are fewer than two."""
    pairs: Pairs = []
    for event in passes_of(events):
        samples, seconds, _ = pace_of([event])
        if seconds:
            pairs.append((float(_epoch(event)), samples / seconds))
    if len(pairs) < 2:
        return None
    series = Series(name="samples/s", curve=thin(pairs), tone="training", has_dots=len(pairs) <= 40)
    return chart.lines("samples/s", [series], x_name="epoch", note="Training without warm-up and evaluation.")


def _epoch(event: Mapping[str, Any]) -> int:
    """The epoch, from 1."""
    return int(number_in(event, "epoch") or 0) + 1


def bound(events: Events) -> str:
    """What limits the speed, in a sentence; empty: not known."""
    splits, _ = splits_of(passes_of(events))
    return verdict(splits) if splits else ""


def where_the_time_went(events: Events, hosts: Sequence[str]) -> Bars | None:
    """The time of a step on each rank, cut into its parts; None: no pass has ended."""
    splits, num_steps = splits_of(passes_of(events))
    if not splits:
        return None
    several = len(set(hosts)) > 1 and len(hosts) >= len(splits)
    rows = [(f"rank {rank}{f' on {hosts[rank]}' if several else ''}", split) for rank, split in enumerate(splits)]
    shown = sorted(sorted(range(len(rows)), key=lambda rank: splits[rank]["waiting"])[:_MOST_RANKS])
    note = f"Mean of {num_steps:,} steps."
    if len(shown) < len(rows):
        note += f" Of {len(rows)} ranks, the {len(shown)} that waited least for others; the table has all."
    return _step_bars([rows[rank] for rank in shown], rows, num_steps, note)


def _step_bars(rows: Sequence[tuple[str, Split]], all_rows: Sequence[tuple[str, Split]], num_steps: int, note: str) -> Bars:
    """A stacked bar a row: the milliseconds of a step in each part. The table has ``all_rows``."""
    whole = max(math.fsum(split.values()) for _, split in rows)
    used = [part for part in PARTS if any(split[part] > 0.0005 * whole for _, split in all_rows)]
    drawn = []
    for label, split in rows:
        total = math.fsum(split.values())
        named = {part: f"{PARTS[part]}, {1e3 * split[part] / num_steps:.2f} ms" for part in used}
        segments = chart.stacked({part: split[part] for part in used}, named, whole)
        drawn.append(Bar(label=label, value=f"{1e3 * total / num_steps:.1f} ms a step", segments=segments))
    cells = []
    for label, split in all_rows:
        ms = [1e3 * seconds / num_steps for seconds in (*(split[part] for part in used), math.fsum(split.values()))]
        cells.append((label, *(f"{milliseconds:.2f}" for milliseconds in ms)))
    return Bars(
        title="A step, by rank",
        bars=tuple(drawn),
        legend={part: PARTS[part] for part in used},
        note=note,
        table=Table(
            headings=("", *(PARTS[part] for part in used), "ms a step"),
            rows=cells,
            numbers=frozenset(range(1, len(used) + 2)),
        ),
    )


def slow_ranks(events: Events) -> tuple[str, Table | None]:
    """A sentence about ranks that the others waited for, and a table of when; empty and None: there was none."""
    rows = list(_slow(events))
    if not rows:
        return "", None
    ranks = Counter(row[1] for row in rows).most_common(3)
    listed = ", ".join(f"rank {rank} ({count}×)" for rank, count in ranks)
    headings = ("step", "rank", "host", "slow in", "times the others", "everybody waited")
    table = Table(headings=headings, rows=rows[-_MOST_SLOW:], numbers=frozenset({0, 1, 4, 5}))
    left_out = f" The table has the last {_MOST_SLOW} of {len(rows)}." if len(rows) > _MOST_SLOW else ""
    return f"The others had to wait for {listed}.{left_out}", table


def moves(events: Events) -> Table | None:
    """A table of when shards moved between ranks; None: they did not."""
    rows = [
        (str(event["step"]), moved_shards(event), f"{event['gain']:.0%}") for event in events if event["event"] == "move"
    ]
    headings = ("from step", "shards moved", "predicted to save")
    return Table(headings=headings, rows=rows[-_MOST_SLOW:], numbers=frozenset({0, 2})) if rows else None


def _slow(events: Events) -> Iterator[tuple[str, ...]]:
    for event in events:
        times, cost = number_in(event, "times"), number_in(event, "cost")
        if event["event"] == "slow" and times is not None and cost is not None:
            activity = str(event.get("activity"))
            yield (
                str(event.get("step")),
                str(event.get("rank")),
                str(event.get("host")),
                ACTIVITIES.get(activity, activity),
                f"{times:.1f}×",
                f"{cost:.0%}",
            )
