"""Which rank is slower than the others, in which activity, and what that costs all of them.

The times come from the numbers that the ranks exchange at the end of each phase anyway. All ranks
have the same numbers, so all reach the same result without another message, and rank 0 reports it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lockstep._events.measure.split import ACTIVITIES, Row

_WINDOW = 20
"""The number of phases in a window. A window of brief phases has more, since another process may
take a rank's core for as long as 20 of them."""
_LEAST_S = 1.0
"""The least duration of a window, in seconds."""
_MOST_PHASES = 50 * _WINDOW
"""The most phases in a window, however brief they are."""
SLOW = 1.2
"""The multiple of the others' median time per sample from which a rank is slow."""
NEARLY_ALWAYS = 0.8
"""The share of a window's phases in which a slow rank is slow. It must be so in two consecutive
windows: other processes may take its processor now and then, or once for long."""
LEAST_COST = 0.05
"""The share of their time that a slow rank costs the others, from which it is reported."""

_REMEDIES = {
    "data": "Check the disk and the loader workers of that machine",
    "forward": "Check for other processes on that machine, and its clock rate and temperature",
    "backward": "Check for other processes on that machine, and its clock rate and temperature",
    "script": "Check what only that rank does in the loop (logging, saving), and for other processes on that machine",
}
_LARGER = "Other ranks on that machine are faster, so first check whether its samples are larger (longer sequences), then"
_REMEDIES_AMONG_NEIGHBORS = {
    **_REMEDIES,
    "data": f"{_LARGER} its loader workers, and the files that only it reads",
    "forward": f"{_LARGER} what only that rank does there, and whether others use its cores",
    "backward": f"{_LARGER} what only that rank does there, and whether others use its cores",
    "script": "Check what only that rank does in the loop (logging, saving)",
}


def remedy(activity: str, has_neighbors: bool) -> str:
    """What to check if a rank is slow in this activity. ``has_neighbors``: whether its machine has
    other ranks, which are faster."""
    return (_REMEDIES_AMONG_NEIGHBORS if has_neighbors else _REMEDIES)[activity]


Phase = tuple[Sequence[Row], Sequence[float]]
"""The rows of all ranks in a phase, and how long each rank was busy, in seconds."""


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for."""

    rank: int
    activity: str
    """The activity in which the rank loses most time, one of ``ACTIVITIES``."""
    times: float
    """The rank's time in the activity, as a multiple of the others' median."""
    cost: float
    """The share of a usual phase for which the others wait for the rank."""

    def describe(self, hosts: Sequence[str], step: int) -> str:
        """The activity in which the rank is slow, and a remedy, for the user.

        Args:
            hosts: of all ranks.
            step: the current one.
        """
        host = hosts[self.rank]
        return (
            f"rank {self.rank} on {host} is slow, up to step {step}: {ACTIVITIES[self.activity]} takes {self.times:.1f} times "
            f"as long as on the other ranks, which wait for it {self.cost:.0%} of the time. "
            f"{remedy(self.activity, hosts.count(host) > 1)}."
        )


class SlowRanks:
    """Looks for a slow rank, window by window.

    Args:
        may_judge: whether the times are meaningful: not where ranks wait for each other in forward
            passes, who knows how long.
        tell: called once for each slow rank.
    """

    def __init__(self, *, may_judge: bool, tell: Callable[[SlowRank], None]) -> None:
        self._may_judge = may_judge
        self._tell = tell
        self._phases: list[Phase] = []
        self._suspect: int | None = None
        """The rank that was slow in the last window."""
        self._known: int | None = None
        """The rank that was reported and is still slow."""

    def add(self, rows: Sequence[Row], busy: Sequence[float]) -> None:
        """Add a phase: see ``StepClock``'s ``tell``."""
        if not self._may_judge:
            return
        self._phases.append((rows, busy))
        if len(self._phases) % _WINDOW:
            return
        usual_s = statistics.median(max(busy) for _, busy in self._phases)
        if len(self._phases) * usual_s < _LEAST_S and len(self._phases) < _MOST_PHASES:
            return
        window, self._phases = self._phases, []
        slow = find_slow_rank(window) if _may_be_slow(window) else None
        before, self._suspect = self._suspect, None if slow is None else slow.rank
        if slow is None or slow.rank != self._known:
            self._known = None
        if slow is not None and slow.rank == before and slow.rank != self._known:
            self._known = slow.rank
            self._tell(slow)


def _may_be_slow(window: Sequence[Phase]) -> bool:
    """Whether one rank was the busiest in nearly all phases. This is cheap; ``find_slow_rank``
    takes long with many ranks."""
    longest = Counter(busy.index(most) for _, busy in window if busy.count(most := max(busy)) == 1)
    return bool(longest) and longest.most_common(1)[0][1] >= NEARLY_ALWAYS * len(window)


def find_slow_rank(window: Sequence[Phase]) -> SlowRank | None:
    """The slow rank of a window, if there is one. A rank with more samples may be busy for longer.
    Pure."""
    slowest: list[tuple[int, float]] = []
    """The slowest rank of each phase that has one, and the share of the phase for which the others
    wait for it."""
    for rows, busy in window:
        try:
            rates = [seconds / row[0] for seconds, row in zip(busy, rows, strict=True)]
        except ZeroDivisionError:  # no judgment where a rank has no samples
            continue
        ranked = sorted(rates)
        # The lower median: with two ranks it is the faster one, not a mean with the suspect itself.
        highest, typical = ranked[-1], ranked[(len(ranked) - 1) // 2]
        rank = rates.index(highest)
        longest = max(busy)
        if highest > SLOW * typical and busy[rank] == longest:
            # A rank with more samples is not to blame for them; one with fewer, since it is slow,
            # costs the others less.
            others = statistics.median(seconds for peer, seconds in enumerate(busy) if peer != rank)
            slowest.append((rank, min((highest - typical) * rows[rank][0], longest - others) / longest))
    if not slowest:
        return None
    rank = statistics.mode(each for each, _ in slowest)
    shares = [share for each, share in slowest if each == rank]
    # The median, with 0 for phases in which it is not the slowest: one long phase, as of an
    # evaluation on one rank, would dominate a mean.
    shares += [0.0] * (len(window) - len(shares))
    cost = statistics.median(shares)
    if shares.count(0.0) > (1 - NEARLY_ALWAYS) * len(window) or cost < LEAST_COST:
        return None
    seconds_by_rank = [
        {
            activity: statistics.median([rows[each][column] / rows[each][0] for rows, _ in window if rows[each][0]] or [0.0])
            for column, activity in enumerate(ACTIVITIES, start=1)
        }
        for each in range(len(window[0][0]))
    ]
    return SlowRank(rank, *slow_in(seconds_by_rank, rank), cost)


def slow_in(seconds_by_rank: Sequence[Mapping[str, float]], rank: int) -> tuple[str, float]:
    """The activity in which a rank loses most time against the median of the others, and how many
    times as long it takes.

    ``seconds_by_rank``: of each rank, the seconds by activity.
    """
    others = [seconds for peer, seconds in enumerate(seconds_by_rank) if peer != rank]
    own = seconds_by_rank[rank]
    typical = {activity: statistics.median(seconds[activity] for seconds in others) for activity in own}
    activity = max(own, key=lambda activity: own[activity] - typical[activity])
    return activity, own[activity] / typical[activity] if typical[activity] else float("inf")
