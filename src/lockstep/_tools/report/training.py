"""Extracts from a run's event log how it trained: curves, and what limits its speed. Pure.

All functions take the history of a run (``_events/history.py``), and skip what they cannot read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._events.format import number_in
from lockstep._events.measure.split import verdict
from lockstep._tools.compare.figures import splits_of
from lockstep._tools.report import chart
from lockstep._tools.report.chart import Lines, Mark, Series
from lockstep._tools.report.thin import MOST_POINTS, thin

Events = Sequence[Mapping[str, Any]]
Pairs = list[tuple[float, float | None]]

_MOST_CURVES = 150
_ALL_POINTS = 6_000
"""The largest number of points of all curves together, which keeps a page below a megabyte."""
_FEWEST = 24


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


def _logged_in_steps(events: Events) -> set[str]:
    """The names that were logged in training steps, and not only between passes and after
    evaluations."""
    found = set[str]()
    for event in events:
        if event["event"] == "step" and isinstance(values := event.get("values"), Mapping):
            found |= set(map(str, values)).difference(event.get("apart", ()))
    return found


def passes_of(events: Events) -> list[Mapping[str, Any]]:
    """Returns the finished passes over a training loader."""
    return [event for event in events if event["event"] == "epoch" and number_in(event, "step") is not None]


def curves(events: Events) -> tuple[list[Lines], list[str]]:
    """A picture for each name that was logged, with evaluation results of the same name in it; and
    names not drawn."""
    trained, evaluated = values_of(events, "step"), values_of(events, "evaluate")
    names = list(dict.fromkeys((*trained, *evaluated)))
    in_steps = _logged_in_steps(events)
    drawn, most = names[:_MOST_CURVES], points_each(min(len(names), _MOST_CURVES))
    resumes = [Mark(step, f"{step:,.0f}") for event in events if (step := _resumed_after(event))]
    pictures = []
    for name in drawn:
        series = [
            Series(
                # between passes, say: of what, only the script knows
                name="training" if name in in_steps else "logged",
                curve=thin(trained.get(name, ()), most),
                tone="training",
                has_dots=name not in in_steps,
            ),
            Series(name="evaluation", curve=thin(evaluated.get(name, ()), most), tone="evaluation", has_dots=True),
        ]
        picture = chart.lines(name, series, resumes)
        if picture is not None:
            pictures.append(picture)
    shown = {picture.title for picture in pictures}
    return pictures, [name for name in names if name not in shown]


def _resumed_after(event: Mapping[str, Any]) -> float | None:
    return number_in(event, "step") if event["event"] == "resume" else None


def points_each(num_curves: int) -> int:
    """How many points each of so many curves may have."""
    return max(_FEWEST, min(MOST_POINTS, _ALL_POINTS // max(1, num_curves)))


def bound(events: Events) -> str:
    """What limits the speed, in a sentence; empty: not known."""
    splits, _ = splits_of(passes_of(events))
    return verdict(splits) if splits else ""
