"""Where the time of a run's steps went on each rank, from its journal. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep.journal.events import number_in
from lockstep.journal.measure.split import PARTS

Split = dict[str, float]
"""Seconds of each part."""
_WITH_OTHERS = ("communication", "waiting")


def splits_of(passes: Iterable[Mapping[str, Any]]) -> tuple[list[Split], int]:
    """The seconds of each part by rank, and the steps, of all passes at the last number of processes; both empty: none.

    Args:
        passes: the journal's events ``epoch``.
    """
    timed = [event for event in passes if _is_split(event.get("split")) and number_in(event, "num_steps")]
    if not timed:
        return [], 0
    size = len(timed[-1]["split"])
    alike = [event for event in timed if len(event["split"]) == size]
    splits = [
        {part: math.fsum(number_in(event["split"][rank], part) or 0.0 for event in alike) for part in PARTS}
        for rank in range(size)
    ]
    return splits, sum(int(event["num_steps"]) for event in alike)


def slowest_of(splits: Sequence[Mapping[str, float]]) -> tuple[int | None, float | None]:
    """The rank that was busy with work of its own for longest, and by how many per cent longer than the median of the others;
    None and None with fewer than two."""
    busy = [math.fsum(split[part] for part in PARTS if part not in _WITH_OTHERS) for split in splits]
    if len(busy) < 2:
        return None, None
    rank = max(range(len(busy)), key=lambda index: busy[index])
    typical_s = statistics.median(busy[:rank] + busy[rank + 1 :])
    return rank, (100 * (busy[rank] / typical_s - 1) if typical_s else 0.0)


def _is_split(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(split, Mapping) for split in value)
