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
from typing import NamedTuple

from lockstep.tools.explain.script_clock import BUSY, SAMPLES, WAITED, WAITING, WINDOW, Window
from lockstep.tools.explain.slow_ranks import LEAST_COST, NEARLY_ALWAYS, SLOW

Row = Sequence[Window]
"""The same window of all ranks."""
_NUM_ROWS = (5, 10, 20, 30, 60)
_MOST_BLOCKS = 10
_LEAST_SAMPLED = 0.5
"""The share of the cost that samples must show: where times do, they alone judge (``slow_script_ranks``)."""
_LEAST_SAMPLES = 25
"""On each rank, while it was not waiting within a backward pass."""
_LEAST_S = 5.0
_NUM_SIGMAS = 5.0
_NUM_SIGMAS_OF_BLOCKS = 3.0
"""Successive samples are not independent: what takes a core takes it for longer. So their blocks must agree, too."""


class Awaited(NamedTuple):
    """The rank that the others wait for."""

    position: int
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
    sampled: float
    """The part of it that samples show."""
    sigma: float
    num_samples: int


class _Gap(NamedTuple):
    """Between a rank and what is typical of the others."""

    times: float
    cost: float
    sampled: float
    """The part of the cost that samples show."""
    sigma: float
    """Of the cost."""

    @property
    def is_notable(self) -> bool:
        return self.times >= SLOW and self.cost >= LEAST_COST


def find_awaited(rows: Sequence[Row]) -> Awaited | None:
    """The rank that the others wait for, from the newest of consecutive windows: from as few as suffice."""
    if len(rows) < _NUM_ROWS[0] or not any(window[SAMPLES].get(WAITING) for row in rows for window in row):
        return None
    for count in sorted({min(count, len(rows)) for count in _NUM_ROWS}):
        if (awaited := _awaited_in(rows[-count:])) is not None:
            return awaited
    return None


def busy_share(rows: Sequence[Row], position: int) -> float:
    """The share of its time for which a rank does not wait, as far as times and samples tell."""
    return 1 - _shares(rows)[position].value


def waits_more(rows: Sequence[Row], suspect: int) -> bool:
    """Whether a rank spends more time in collectives than is typical of the others, by more than chance."""
    gap = _gap(_shares(rows), suspect)
    return -gap.cost > gap.sigma


def _awaited_in(rows: Sequence[Row]) -> Awaited | None:
    took_s = WINDOW * sum(max(float(window[BUSY]) + float(window[WAITED]) for window in row) for row in rows)
    if took_s < _LEAST_S:
        return None
    shares = _shares(rows)
    if min(share.num_samples for share in shares) < _LEAST_SAMPLES:
        return None
    suspect = min(range(len(shares)), key=lambda position: shares[position].value)
    gap = _gap(shares, suspect)
    if not gap.is_notable or gap.sampled < _LEAST_SAMPLED * gap.cost or gap.cost < _NUM_SIGMAS * gap.sigma:
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
    typical = statistics.median_low([share for position, share in enumerate(shares) if position != suspect])
    times = (1 - mine.value) / (1 - typical.value) if typical.value < 1 else math.inf
    cost, sampled = typical.value - mine.value, typical.sampled - mine.sampled
    return _Gap(times, cost, sampled, math.hypot(mine.sigma, typical.sigma))


def _shares(rows: Sequence[Row]) -> list[_Share]:
    return [_share([row[position] for row in rows]) for position in range(len(rows[0]))]


def _share(windows: Sequence[Window]) -> _Share:
    busy_s, waited_s = (sum(float(window[column]) for window in windows) for column in (BUSY, WAITED))
    count = sum(sum(window[SAMPLES].values()) for window in windows)
    waiting = sum(window[SAMPLES].get(WAITING, 0) for window in windows)
    busy = busy_s / (busy_s + waited_s) if busy_s else 0.0
    # Of a binomial distribution, smoothed: a few samples that are all alike do not mean always or never.
    chance = (waiting + 1) / (count + 2) if waiting else 0.0
    error = math.sqrt((waiting + 1) * (count - waiting + 1)) / (count + 2) / math.sqrt(max(1, count))
    return _Share(1 - busy + busy * chance, busy * chance, busy * error, count)
