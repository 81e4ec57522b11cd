"""Which rank the others wait for where only samples tell that they wait: in collectives outside of the time between the last
gradient and the optimizer step. Pure.

Samples are few, so a difference must be larger than chance would make it, and be there throughout: neither a checkpoint that
one rank saves while the others wait nor a core that something else takes for a moment makes a rank slow.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockstep.explain.script_clock import WAITING, WINDOW
from lockstep.explain.slow_ranks import LEAST_COST, NEARLY_ALWAYS, SLOW

BUSY, WAITED, SAMPLES = 3, 4, 5
"""Columns of a window: see ``ScriptClock.history``."""
Window = Sequence[Any]
Row = Sequence[Window]
"""The same window of all ranks."""
_NUM_ROWS = (5, 10, 20, 30, 60)
_MOST_BLOCKS = 10
_LEAST_SAMPLES = 25
"""On each rank, while it was not waiting within a backward pass."""
_LEAST_S = 5.0
_NUM_SIGMAS = 5.0
_NUM_SIGMAS_OF_BLOCKS = 3.0
"""Successive samples are not independent: what takes a core takes it for longer. So their blocks must agree, too."""


class Awaited(NamedTuple):
    """The rank that the others wait for."""

    column: int
    """Of its windows in the rows."""
    times: float
    """Its busy time, as a multiple of the median of the others."""
    cost: float
    """The share of all time that the others wait longer than it does."""
    num_rows: int
    """How many of the newest rows that is judged by."""


class _Share(NamedTuple):
    """Of a rank's time, what it waits."""

    value: float
    sigma: float
    num_samples: int


class _Gap(NamedTuple):
    """Between a rank and what is typical of the others."""

    times: float
    cost: float
    sigma: float
    """Of the cost."""

    @property
    def is_notable(self) -> bool:
        return self.times >= SLOW and self.cost >= LEAST_COST


def find_awaited(rows: Sequence[Row]) -> Awaited | None:
    """The rank that the others wait for, from the newest of consecutive windows: from as few as suffice."""
    if not any(window[SAMPLES].get(WAITING) for row in rows for window in row):
        return None
    for count in _NUM_ROWS:
        if count <= len(rows) and (awaited := _awaited_in(rows[-count:])) is not None:
            return awaited
    return None


def waits_more(rows: Sequence[Row], suspect: int) -> bool:
    """Whether a rank spends more time in collectives than is typical of the others, by more than chance."""
    gap = _gap(_shares(rows), suspect)
    return -gap.cost > gap.sigma


def _awaited_in(rows: Sequence[Row]) -> Awaited | None:
    shares = _shares(rows)
    took_s = WINDOW * sum(max(float(window[BUSY]) + float(window[WAITED]) for window in row) for row in rows)
    if took_s < _LEAST_S or min(share.num_samples for share in shares) < _LEAST_SAMPLES:
        return None
    suspect = min(range(len(shares)), key=lambda column: shares[column].value)
    gap = _gap(shares, suspect)
    if not gap.is_notable or gap.cost < _NUM_SIGMAS * gap.sigma:
        return None
    num_blocks = min(_MOST_BLOCKS, len(rows))
    edges = [len(rows) * number // num_blocks for number in range(num_blocks + 1)]
    blocks = [_shares(rows[first:end]) for first, end in itertools.pairwise(edges)]
    gaps = [_gap(block, suspect) for block in blocks]
    costs = [each.cost for each in gaps]
    error = statistics.stdev(costs) / math.sqrt(num_blocks)
    if sum(each.is_notable for each in gaps) < NEARLY_ALWAYS * num_blocks:
        return None
    return Awaited(suspect, gap.times, gap.cost, len(rows)) if gap.cost > _NUM_SIGMAS_OF_BLOCKS * error else None


def _gap(shares: Sequence[_Share], suspect: int) -> _Gap:
    mine = shares[suspect]
    typical = statistics.median_low([share for column, share in enumerate(shares) if column != suspect])
    times = (1 - mine.value) / (1 - typical.value) if typical.value < 1 else math.inf
    return _Gap(times, typical.value - mine.value, math.hypot(mine.sigma, typical.sigma))


def _shares(rows: Sequence[Row]) -> list[_Share]:
    return [_share([row[index] for row in rows]) for index in range(len(rows[0]))]


def _share(windows: Sequence[Window]) -> _Share:
    busy_s, waited_s = (sum(float(window[column]) for window in windows) for column in (BUSY, WAITED))
    count = sum(sum(window[SAMPLES].values()) for window in windows)
    waiting = sum(window[SAMPLES].get(WAITING, 0) for window in windows)
    busy = busy_s / (busy_s + waited_s) if busy_s else 0.0
    # Of a binomial distribution; with few samples, never 0.
    chance = (waiting + 1) / (count + 2)
    sigma = busy * math.sqrt(chance * (1 - chance) / max(1, count))
    return _Share(1 - busy + busy * waiting / max(1, count), sigma, count)
