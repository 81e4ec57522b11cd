"""Which rank is slower than the others, in what, and what that costs everybody.

Judged by what the ranks tell each other at the end of each phase, which all of them know: so all come to the same result.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from lockstep.explain.split import ACTIVITIES

_WINDOW = 20
_BUSY = itemgetter(-1)
SLOW = 1.2
"""How many times as busy as the median of the others a rank is that is called slow."""
NEARLY_ALWAYS = 0.8
"""In that part of the phases of each of two windows on end: what is stolen now and then, or once for long, is no slow rank."""
LEAST_COST = 0.05
"""Of everybody's time; less is not worth a word."""


REMEDIES = {
    "data": "Look at the disk and the loader workers of that machine",
    "forward": "Look at what else runs on that machine, and at its clock rate and temperature",
    "backward": "Look at what else runs on that machine, and at its clock rate and temperature",
    "script": "Look at what that rank alone does in the loop (logging, saving), and at what else runs on that machine",
}


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for."""

    rank: int
    activity: str
    """In what it is slow, of ``ACTIVITIES``."""
    times: float
    """How many times as long it takes over that as the median of the others."""
    cost: float
    """The share of everybody's time that the others wait for it."""

    def describe(self, host: str, step: int) -> str:
        """For the user."""
        return (
            f"rank {self.rank} on {host} is slow, up to step {step}: {ACTIVITIES[self.activity]} takes it {self.times:.1f} "
            f"times as long as the other ranks, which wait for it for {self.cost:.0%} of the time. {REMEDIES[self.activity]}."
        )


class SlowRanks:
    """Looks for a slow rank, window by window.

    Args:
        may_judge: whether the times say anything: not where the ranks meet in every forward pass, and wait there.
        tell: called once for each case.
    """

    def __init__(self, *, may_judge: bool, tell: Callable[[SlowRank], None]) -> None:
        self._may_judge = may_judge
        self._tell = tell
        self._rows: list[tuple[Sequence[Sequence[float]], Sequence[float]]] = []
        self._suspect: int | None = None
        """The rank that was slow in the window before."""
        self._known: int | None = None
        """The rank that was reported, until it is slow no more."""

    def add(self, rows: Sequence[Sequence[float]], busy: Sequence[float]) -> None:
        """A phase has ended: see ``StepClock``'s ``tell``."""
        if not self._may_judge:
            return
        self._rows.append((rows, busy))
        if len(self._rows) < _WINDOW:
            return
        window, self._rows = self._rows, []
        slow = judge(window) if _may_be_slow(window) else None
        before, self._suspect = self._suspect, None if slow is None else slow.rank
        if slow is None or slow.rank != self._known:
            self._known = None
        if slow is not None and slow.rank == before and slow.rank != self._known:
            self._known = slow.rank
            self._tell(slow)


def busy_of(rows: Sequence[Sequence[float]]) -> list[float]:
    """For how long each rank was busy in a phase: in every step, so not by Python code for each of hundreds of ranks."""
    return list(map(_BUSY, rows))


def _may_be_slow(window: Sequence[tuple[Sequence[Sequence[float]], Sequence[float]]]) -> bool:
    """Whether one rank was busy for longest in nearly all phases: with many ranks the rest of ``judge`` takes time."""
    longest = Counter(busy.index(most) for _, busy in window if busy.count(most := max(busy)) == 1)
    return bool(longest) and longest.most_common(1)[0][1] >= NEARLY_ALWAYS * len(window)


def judge(window: Sequence[tuple[Sequence[Sequence[float]], Sequence[float]]]) -> SlowRank | None:
    """The slow rank of a window of phases, if there is one. A rank with more samples may be busy for longer.

    ``window``: of each phase its rows, and ``busy_of`` them.
    """
    slowest: Counter[int] = Counter()
    lost_s = whole_s = 0.0
    for rows, busy in window:
        try:
            rates = [seconds / row[0] for seconds, row in zip(busy, rows, strict=True)]
        except ZeroDivisionError:  # a rank without samples is not judged
            continue
        ranked = sorted(rates)
        highest, typical = ranked[-1], ranked[(len(ranked) - 1) // 2]
        rank = rates.index(highest)
        longest = max(busy)
        whole_s += longest
        if highest > SLOW * typical and busy[rank] == longest:
            slowest[rank] += 1
            lost_s += (highest - typical) * rows[rank][0]
    if not slowest:
        return None
    rank, count = slowest.most_common(1)[0]
    cost = lost_s / whole_s if whole_s else 0.0
    if count < NEARLY_ALWAYS * len(window) or cost < LEAST_COST:
        return None
    return SlowRank(rank, *_slow_in([rows for rows, _ in window], rank), cost)


def _slow_in(window: Sequence[Sequence[Sequence[float]]], rank: int) -> tuple[str, float]:
    """The activity in which a rank loses most against the median of the others, and how many times as long it takes."""
    excess: list[tuple[float, str, float]] = []
    for column, activity in enumerate(ACTIVITIES, start=1):
        rates = [
            sum(rows[each][column] / rows[each][0] for rows in window if rows[each][0]) for each in range(len(window[0]))
        ]
        typical = statistics.median(rate for peer, rate in enumerate(rates) if peer != rank)
        excess.append((rates[rank] - typical, activity, rates[rank] / typical if typical else float("inf")))
    _, activity, times = max(excess)
    return activity, times
