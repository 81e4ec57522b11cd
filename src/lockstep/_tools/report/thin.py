"""Thinning curves: a run of a million steps is drawn with a few hundred points. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_POINTS = 400
"""The largest number of points of a curve that is drawn point by point. A longer curve is cut into
buckets, each drawn as its mean, minimum and maximum."""


@dataclass(frozen=True)
class Point:
    """A value, or the summary of several neighboring ones."""

    x: float
    """The x of the last value."""
    mean: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve that can be drawn: finite, and not too long."""

    points: tuple[Point, ...]
    per_point: int = 1
    """Number of values in a point."""
    num_missing: int = 0
    """Number of values that are in no point, since they were not finite."""


def thin(values: Sequence[tuple[float, float | None]], most: int = MOST_POINTS) -> Curve:
    """A curve from pairs of x and y, in order; None, or not finite: a gap in it.

    Args:
        values: the pairs.
        most: how many points may be drawn.
    """
    finite = [(x, float(y)) for x, y in values if y is not None and math.isfinite(y)]
    per_point = 1 if len(finite) <= most else math.ceil(len(finite) / max(1, most // 3))
    points = []
    for start in range(0, len(finite), per_point):
        part = finite[start : start + per_point]
        ys = [y for _, y in part]
        # divided first: a sum may overflow
        mean = min(max(math.fsum(y / len(ys) for y in ys), min(ys)), max(ys))
        points.append(Point(part[-1][0], mean, min(ys), max(ys)))
    return Curve(points=tuple(points), per_point=per_point, num_missing=len(values) - len(finite))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within a range, at most so many, in equal distances."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next((power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most), power * 20)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, first + most + 1) if number * step <= high + 1e-9 * step]
