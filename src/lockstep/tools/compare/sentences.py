"""Each row of a comparison in a sentence. Pure."""

from __future__ import annotations

from lockstep.journal.measure.split import sentence
from lockstep.tools.compare.comparison import Comparison, RowResult

_NOTABLE = 5.0  # per cent


def sentence_of(comparison: Comparison, result: RowResult) -> str | None:
    """How fast a row is, whether that is more than noise, what limits it, and which rank the others wait for; None without
    figures."""
    figures = result.figures
    if figures is None:
        return None
    parts = [_speed(comparison, result)]
    if figures.shares:
        parts.append(sentence(figures.shares))
    if figures.slowest_by is not None and figures.slowest_by >= _NOTABLE:
        parts.append(f"rank {figures.slowest_rank} is the slowest, {figures.slowest_by:.0f} % behind the others")
    return "; ".join(parts)


def _speed(comparison: Comparison, result: RowResult) -> str:
    baseline, relation = comparison.baseline, comparison.relation(result)
    if baseline is None or relation is None:
        return "nothing to compare its speed with"
    if result is baseline:
        spread = "" if result.interval is None else f", measured to ±{result.interval.spread}"
        return f"the others are compared with it{spread}"
    label, interval, speed_up = baseline.row.label, relation.interval, relation.speed_up
    if interval is None:
        return f"{speed_up:.2f} times as fast as {label}, measured once: --rounds 3 tells how much of that is noise"
    reach = f"95 % interval {interval.low:.2f} to {interval.high:.2f}"
    if relation.is_noise:
        return f"no difference from {label} beyond noise ({reach} times as fast)"
    return f"{speed_up:.2f} times as fast as {label} ({reach})"
