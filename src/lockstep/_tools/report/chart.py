"""Curves, as geometry. Pure. ``templates/charts.html`` draws them as SVG.

Horizontal positions are per cent of the picture's width, so that it fits any screen while its text
keeps its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep._tools.report.thin import Curve, ticks
from lockstep._world.machine.sizes import counted

_MARGIN = 0.06
"""The margin above and below a curve, as a share of the range of y."""
_MOST_MARKS = 24
_PLAIN = 1e5


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a page."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    """Columns of numbers, from 0: aligned at the right."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve of a picture."""

    name: str
    curve: Curve
    tone: str
    """The style, a class of ``style.css``."""
    has_dots: bool = False
    """Whether the points are what was measured, and the line between them only leads the eye."""


@dataclass(frozen=True)
class Mark:
    """A marked position, with its label."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over the steps."""

    title: str
    description: str
    """The text alternative."""
    series: tuple[Series, ...]
    x_ticks: tuple[Mark, ...]
    y_ticks: tuple[Mark, ...]
    resumes: tuple[Mark, ...] = ()
    """Where an interrupted run was resumed."""
    note: str = ""
    low: tuple[float, float]
    """The lower left corner of the picture: x and y."""
    high: tuple[float, float]
    """The upper right corner of the picture: x and y."""

    def across(self, x: float) -> float:
        """A horizontal position in thousandths of the width."""
        return 1000 * (x - self.low[0]) / (self.high[0] - self.low[0])

    def down(self, y: float) -> float:
        """A vertical position in thousandths of the height, from the top."""
        return 1000 * (self.high[1] - y) / (self.high[1] - self.low[1])

    def line(self, series: Series) -> str:
        """The points of its line, as SVG's ``points``."""
        return " ".join(f"{self.across(p.x):.0f},{self.down(p.mean):.0f}" for p in series.curve.points)

    def band(self, series: Series) -> str:
        """The outline of the band between least and most."""
        points = series.curve.points
        upper = [f"{self.across(p.x):.0f},{self.down(p.most):.0f}" for p in points]
        lower = [f"{self.across(p.x):.0f},{self.down(p.least):.0f}" for p in reversed(points)]
        return " ".join([*upper, *lower])


def lines(title: str, series: Sequence[Series], resumes: Sequence[Mark]) -> Lines | None:
    """A picture of curves; None: there are no points.

    Args:
        title: above it.
        series: the curves. Those without a point are left out.
        resumes: where an interrupted run was resumed.
    """
    drawn = [curve for curve in series if curve.curve.points]
    points = [point for curve in drawn for point in curve.curve.points]
    if not points:
        return None
    xs = [point.x for point in points]
    low_y, high_y = min(point.least for point in points), max(point.most for point in points)
    room = _MARGIN * (high_y - low_y) or abs(high_y) * _MARGIN or 1.0
    low, high = (min(0.0, min(xs)), low_y - room), (max(xs) if max(xs) > 0 else 1.0, high_y + room)
    missing = sum(curve.curve.num_missing for curve in series)
    notes = [f"{counted(missing, 'value')} not finite, and not drawn."] if missing else []
    per_point = max(curve.curve.per_point for curve in drawn)
    if per_point > 1:
        notes.append(f"Line: mean of {per_point:,} values; band: least and most of them.")
    return Lines(
        title=title,
        description=_description(title, drawn),
        series=tuple(drawn),
        x_ticks=tuple(Mark(100 * x / high[0], short(x)) for x in ticks(0.0, high[0], 5)),
        y_ticks=tuple(Mark(100 * (high[1] - y) / (high[1] - low[1]), short(y)) for y in ticks(low[1], high[1], 6)),
        resumes=_spread(resumes, high[0]),
        note=" ".join(notes),
        low=low,
        high=high,
    )


def _spread(marks: Sequence[Mark], most: float) -> tuple[Mark, ...]:
    """Returns the marks in per cent of the width, thinned so that they can be distinguished."""
    every = -(-len(marks) // _MOST_MARKS) or 1
    return tuple(Mark(100 * mark.at / most, mark.text) for mark in marks[every - 1 :: every])


def _description(title: str, drawn: Sequence[Series]) -> str:
    sentences = []
    for line in drawn[:12]:
        first, last = line.curve.points[0], line.curve.points[-1]
        least, most = min(p.least for p in line.curve.points), max(p.most for p in line.curve.points)
        sentences.append(
            f"{line.name} goes from {short(first.mean)} to {short(last.mean)} at step {short(last.x)}, "
            f"between {short(least)} and {short(most)}"
        )
    return f"{title} over the steps: {'; '.join(sentences)}."


def short(number: float) -> str:
    """A number with four significant digits."""
    if number == int(number) and abs(number) < _PLAIN:
        return str(int(number))
    text = f"{number:.4g}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
