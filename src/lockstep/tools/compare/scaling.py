"""How speed grows with the number of processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.tools.compare.comparison import Comparison
from lockstep.tools.compare.confidence import Interval


@dataclass(frozen=True, kw_only=True)
class Point:
    """A method with a number of processes."""

    num_processes: int
    speed_up: float
    """Over the baseline."""
    interval: Interval | None


def scaling_of(comparison: Comparison) -> dict[str, tuple[Point, ...]]:
    """The points of each method that was measured with several numbers of processes, by its name; fewest processes first."""
    points: dict[str, dict[int, Point]] = {}
    for result in comparison.rows:
        relation, number = comparison.relation(result), result.row.num_processes
        if relation is not None:
            point = Point(num_processes=number, speed_up=relation.speed_up, interval=relation.interval)
            points.setdefault(result.row.method.name, {})[number] = point
    return {name: tuple(by_size[size] for size in sorted(by_size)) for name, by_size in points.items() if len(by_size) > 1}
