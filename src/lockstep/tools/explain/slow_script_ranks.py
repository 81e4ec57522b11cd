"""Which rank of a script that does not use lockstep is slower than the others, and what that costs all of them.

Judged from the black boxes of all ranks (``script_clock``). A rank is slow if it is busy for longer than the others in nearly
every step, and the others wait for it. Each rank measures durations with its own clock, so the machines' clocks may differ.
Where they wait at another place than between backward pass and optimizer step, samples must tell (``waiting_samples``).

Where it loses that time is what it spends more time at than is typical of the others, in the steps that it was judged by.

On a GPU, the wait after the backward pass may be for the rank's own GPU, which hides how long it is busy: such a rank is slow
only if it hardly waits at all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.journal.measure.split import SAMPLED
from lockstep.tools.explain.places import Place
from lockstep.tools.explain.script_clock import BUSY, BUSY_20, BUSY_50, NUMBER, SPENT, WAITED, WINDOW, Window
from lockstep.tools.explain.slow_ranks import LEAST_COST, NEARLY_ALWAYS, SLOW, remedy, slow_in
from lockstep.tools.explain.waiting_samples import Awaited, Row, busy_share, find_awaited, waits_more

_LEAST_WINDOWS = 3
_LEAST_S = 1.0
"""Short steps are judged over more windows: a delay of less than a second does not make a rank slow."""
_LONGER_S = 4.0
"""What judges a rank that waits most of the time itself: something else, a lack of cores, say, makes all of them wait."""
_MOSTLY = 0.5
_BUSY_ON_GPU = 0.8
"""The share of its own time for which a rank with a GPU must be busy to be called slow."""
_LEAST_SENT, _LEAST_SENT_S, _MOST_SENT = 8, 7.5, 20
"""Windows that a launcher sends: up to 2.5 s older for one rank than for another, and those that both have must suffice."""
_TWICE = 2
"""Looks in a row that must find a rank slow: for a second, others may take its core."""
_CHANGED_AFTER = 10
"""Looks in a row that must give a reported rank another cause, before that is reported: by a few samples it may change."""


@dataclass(frozen=True, kw_only=True)
class SlowScriptRank:
    """A rank that the others wait for."""

    rank: int
    host: str
    step: int
    """The latest step that it was judged by."""
    times: float
    """Its busy time per step, as a multiple of the median of the others."""
    cost: float
    """The share of all time that the others spend waiting for it."""
    activity: str
    """In which it loses most time, one of ``SAMPLED``; empty: it was not sampled often enough."""
    location: str
    """The line of the script at which it loses most of that; empty: unknown."""
    has_neighbours: bool = False
    """Whether its machine has other ranks, which are faster."""

    def describe(self) -> str:
        """What it is slow in, and a remedy, for the user."""
        text = (
            f"rank {self.rank} on {self.host} is slow, up to step {self.step}: it is busy {self.times:.1f} times as long as "
            f"the other ranks, which wait for it for {self.cost:.0%} of the time."
        )
        if not self.activity:
            return text
        at = f", mostly at {self.location}" if self.location else ""
        return f"{text} It loses that in {SAMPLED[self.activity]}{at}. {remedy(self.activity, self.has_neighbours)}."

    @property
    def cause(self) -> tuple[int, str, str]:
        """What makes two reports the same: the rank, and the activity and function in which it loses time."""
        return self.rank, self.activity, _function(self.location)


class SlowScriptRanks:
    """Looks for slow ranks repeatedly. Each is reported once, and again if it has become slow in something else."""

    def __init__(self) -> None:
        self._told: set[tuple[int, str, str]] = set()
        self._found: list[tuple[int, str, str]] = []
        """The causes at the latest looks."""

    @property
    def writers(self) -> set[int]:
        """The ranks that were reported for writing files in nearly every step."""
        return {rank for rank, activity, _ in self._told if activity == "saving"}

    def look(self, records: Sequence[Mapping[str, Any]]) -> SlowScriptRank | None:
        """The slow rank to report, if there is one, from the newest records of all ranks."""
        slow = judge(records)
        if slow is None:
            self._found = []
            return None
        self._found = [*self._found[1 - _CHANGED_AFTER :], slow.cause]
        is_known = any(rank == slow.rank for rank, _, _ in self._told)
        has_changed = len(self._found) == _CHANGED_AFTER and set(self._found) == {slow.cause}
        is_confirmed = [rank for rank, _, _ in self._found[-_TWICE:]] == [slow.rank] * _TWICE
        if slow.cause in self._told or (is_known and not has_changed) or not is_confirmed:
            return None
        self._told.add(slow.cause)
        return slow


def judge(records: Sequence[Mapping[str, Any]]) -> SlowScriptRank | None:
    """The slow rank, if there is one. Pure.

    Args:
        records: ``rank``, ``host``, ``world_size`` and ``steps`` (``ScriptClock.history``) of each rank.
    """
    if len(records) < 2 or len(records) < int(records[0]["world_size"]):
        return None
    common = _common([(record.get("steps") or {}).get("windows", ()) for record in records])
    awaited = _awaited(_newest(common, _LEAST_S))
    if awaited is not None and busy_share(common[-awaited.num_rows :], awaited.position) < _MOSTLY:
        awaited = _awaited(_newest(common, _LONGER_S))
    is_usual = awaited is not None
    awaited = awaited or find_awaited(common)
    if awaited is None:
        return None
    record, rows = records[awaited.position], common[-awaited.num_rows :]
    if record["steps"].get("on_gpu") and busy_share(rows, awaited.position) < _BUSY_ON_GPU:
        return None
    spent = [
        _spent([row[index] for row in rows], each["steps"].get("places", ()), is_usual=is_usual)
        for index, each in enumerate(records)
    ]
    activity, location = lost_at(spent, awaited.position)
    return SlowScriptRank(
        rank=int(record["rank"]),
        activity=activity,
        times=awaited.times,
        cost=awaited.cost,
        host=str(record["host"]),
        step=WINDOW * int(rows[-1][awaited.position][NUMBER]),
        location=location,
        has_neighbours=any(each["host"] == record["host"] for each in records if each is not record),
    )


def lost_at(spent: Sequence[Mapping[Place, float]], rank: int) -> tuple[str, str]:
    """The activity and the line in which a rank spends more time than is typical of the others; empty: unknown. Pure.

    Args:
        spent: the seconds that each rank has spent at each place, in the same steps.
        rank: the index of the slow one.
    """
    seconds = [
        {activity: sum(each[place] for place in each if place.activity == activity) for activity in SAMPLED}
        for each in spent
    ]
    activity, times = slow_in(seconds, rank)
    if times <= 1.0 or not seconds[rank][activity]:
        return "", ""
    lost: dict[str, float] = {}
    for place, own_s in spent[rank].items():
        if place.activity == activity:
            lost[place.line] = own_s - statistics.median_low(
                each.get(place, 0.0) for index, each in enumerate(spent) if index != rank
            )
    by_function: dict[str, float] = {}
    for line, lost_s in lost.items():
        by_function[_function(line)] = by_function.get(_function(line), 0.0) + lost_s
    if not by_function:
        return activity, ""
    function = max(by_function, key=by_function.__getitem__)
    return activity, max((line for line in lost if _function(line) == function), key=lost.__getitem__)


def _function(line: str) -> str:
    """The file and the function of a place's line."""
    return line.partition(":")[0] + line.partition(" in ")[2]


def _spent(windows: Sequence[Window], places: Sequence[Sequence[str]], *, is_usual: bool) -> dict[Place, float]:
    """The seconds that windows have spent at each place: in usual steps only, or in all."""
    spent: dict[Place, float] = {}
    for window in windows:
        for index, usual_s, whole_s in window[SPENT]:
            place = Place(*places[index])
            spent[place] = spent.get(place, 0.0) + (usual_s if is_usual else whole_s)
    return spent


def _awaited(rows: Sequence[Row]) -> Awaited | None:
    """The rank that is busy for longer in nearly all of these steps, for which the others wait before the optimizer step."""
    if not rows:
        return None
    slowest = [max(range(len(row)), key=lambda index: float(row[index][BUSY_20])) for row in rows]
    suspect = statistics.mode(slowest)

    def typical(row: Row, column: int) -> float:
        return statistics.median_low(float(window[column]) for index, window in enumerate(row) if index != suspect)

    num_slow = sum(
        index == suspect and float(row[suspect][BUSY_20]) > SLOW * typical(row, BUSY_50)
        for row, index in zip(rows, slowest, strict=True)
    )
    # Of what is usual: a window in which it evaluates, say, may outweigh all others, and makes it not slow.
    cost = statistics.median(
        (typical(row, WAITED) - row[suspect][WAITED]) / (float(row[suspect][BUSY]) + float(row[suspect][WAITED]))
        for row in rows
    )
    if num_slow < NEARLY_ALWAYS * len(rows) or cost < LEAST_COST or waits_more(rows, suspect):
        return None
    times = (float(row[suspect][BUSY]) / others_s if (others_s := typical(row, BUSY)) else math.inf for row in rows)
    return Awaited(suspect, statistics.median(times), cost, len(rows))


def newest_steps(steps: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``judge`` needs of a ``ScriptClock.history``, to be sent, with no more windows than it can use. Pure."""
    steps = steps or {}
    windows = steps.get("windows", ())[-_MOST_SENT:]
    count, took_s = 0, 0.0
    while count < len(windows) and (count < _LEAST_SENT or took_s < _LEAST_SENT_S):
        count += 1
        took_s += _duration_s(windows[-count])
    return {
        "windows": windows[len(windows) - count :],
        "places": steps.get("places", []),
        "on_gpu": steps.get("on_gpu", False),
    }


def _duration_s(window: Window) -> float:
    """Of its steps without what comes in some only, an evaluation, say: that is no time in which they were seen."""
    return WINDOW * (float(window[BUSY_50]) + float(window[WAITED]))


def _common(windows_by_rank: Sequence[Sequence[Window]]) -> list[list[Window]]:
    """The newest consecutive windows that all ranks have, by window and rank."""
    by_number = [{int(window[NUMBER]): window for window in windows} for windows in windows_by_rank]
    common = set(by_number[0]).intersection(*by_number[1:])
    rows: list[list[Window]] = []
    number = max(common, default=0)
    while number in common:
        rows.insert(0, [windows[number] for windows in by_number])
        number -= 1
    return rows


def _newest(rows: Sequence[list[Window]], least_s: float) -> list[list[Window]]:
    """The newest of these, as many as are needed; empty: too few."""
    count, took_s = 0, 0.0
    while count < len(rows) and (count < _LEAST_WINDOWS or took_s < least_s):
        count += 1
        took_s += min(map(_duration_s, rows[-count]))  # of the rank that has not waited for something rare
    return list(rows[len(rows) - count :]) if count >= _LEAST_WINDOWS and took_s >= least_s else []
