"""Which rank of a script that knows nothing of lockstep is slower than the others, and what that costs everybody.

Judged from the black boxes of all ranks (``script_clock``). A rank is slow if it is busy for longer than the others in nearly
every step, and if they wait for it: each by its own clock, so that machines can be compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.explain.script_clock import WINDOW
from lockstep.explain.slow import LEAST_COST, NEARLY_ALWAYS, REMEDIES, SLOW
from lockstep.explain.split import ACTIVITIES

_LEAST_WINDOWS = 3
_LEAST_S = 1.0
"""Of short steps more are looked at: what the machine does to a rank within a second is no slow rank."""
_FORGOTTEN_AFTER = 60
"""Looks in which a rank that was reported was not slow: if it is again, that is another case."""


@dataclass(frozen=True, kw_only=True)
class SlowScriptRank:
    """A rank that the others wait for."""

    rank: int
    host: str
    step: int
    """The newest that it was judged by."""
    times: float
    """How many times as long it is busy in a step as the median of the others."""
    cost: float
    """The share of everybody's time that the others wait for it."""
    activity: str
    """In what it loses the time, of ``ACTIVITIES``; empty: it was not seen often enough."""
    place: str
    """The line of the script at which it was mostly seen in that; empty: none was."""

    def describe(self) -> str:
        """For the user."""
        said = (
            f"rank {self.rank} on {self.host} is slow, up to step {self.step}: it is busy {self.times:.1f} times as long as "
            f"the other ranks, which wait for it for {self.cost:.0%} of the time."
        )
        if not self.activity:
            return said
        place = f", mostly at {self.place}" if self.place else ""
        return f"{said} It loses that in {ACTIVITIES[self.activity]}{place}. {REMEDIES[self.activity]}."


class SlowScriptRanks:
    """Looks for a slow rank, again and again."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        """The ranks that were reported: and in how many looks since none of them was slow."""

    def look(self, records: Sequence[Mapping[str, Any]]) -> SlowScriptRank | None:
        """The rank that is slow and was not reported, from the newest records of all ranks."""
        found = judge(records)
        self._known = {rank: since + 1 for rank, since in self._known.items() if since < _FORGOTTEN_AFTER}
        if found is None:
            return None
        is_new = found.rank not in self._known
        self._known[found.rank] = 0
        return found if is_new else None


def judge(records: Sequence[Mapping[str, Any]]) -> SlowScriptRank | None:
    """The slow rank, if there is one. Pure.

    Args:
        records: ``rank``, ``host``, ``world_size`` and ``steps`` (``ScriptClock.history``) of each rank.
    """
    if len(records) < 2 or len(records) < int(records[0]["world_size"]):
        return None
    windows = [{int(window[0]): window for window in (record.get("steps") or {}).get("windows", ())} for record in records]
    rows = _newest(windows)
    if not rows:
        return None
    slowest = [max(range(len(row)), key=lambda place: float(row[place][1])) for row in rows]
    one = statistics.mode(slowest)
    slow = [row for row, found in zip(rows, slowest, strict=True) if found == one and _is_slow(row, one)]
    lost_s = [statistics.median_low(_others(row, one, 4)) - row[one][4] for row in rows]
    cost = sum(lost_s) / sum(float(row[one][3]) + float(row[one][4]) for row in rows)
    if len(slow) < NEARLY_ALWAYS * len(rows) or cost < LEAST_COST:
        return None
    busy = sum(float(row[one][3]) for row in rows)
    others = sum(statistics.median_low(_others(row, one, 3)) for row in rows)
    activity = _slow_in(rows, one)
    record = records[one]
    return SlowScriptRank(
        rank=int(record["rank"]),
        host=str(record["host"]),
        step=WINDOW * int(rows[-1][one][0]),
        times=busy / others if others else float("inf"),
        cost=cost,
        activity=activity,
        place=str(record["steps"].get("places", {}).get(activity, "")),
    )


def _newest(windows: Sequence[Mapping[int, Sequence[Any]]]) -> list[list[Sequence[Any]]]:
    """The newest windows that all ranks have, without a gap, by window and rank: as many as are needed; empty: too few."""
    common = set(windows[0]).intersection(*windows[1:])
    rows: list[list[Sequence[Any]]] = []
    number, took_s = max(common, default=0), 0.0
    while number in common and (len(rows) < _LEAST_WINDOWS or took_s < _LEAST_S):
        row = [found[number] for found in windows]
        took_s += WINDOW * max(float(window[3]) + float(window[4]) for window in row)
        rows.insert(0, row)
        number -= 1
    return rows if len(rows) >= _LEAST_WINDOWS and took_s >= _LEAST_S else []


def _is_slow(row: Sequence[Sequence[Any]], one: int) -> bool:
    """Whether a rank was slower in nearly all steps of a window than the others mostly are."""
    return float(row[one][1]) > SLOW * statistics.median_low(_others(row, one, 2))


def _others(row: Sequence[Sequence[Any]], one: int, column: int) -> list[float]:
    return [float(window[column]) for place, window in enumerate(row) if place != one]


def _slow_in(rows: Sequence[Sequence[Sequence[Any]]], one: int) -> str:
    """The activity in which a rank loses most against the median of the others, by the glances at it."""
    seconds = []
    for place in range(len(rows[0])):
        seen = {activity: sum(int(row[place][5].get(activity, 0)) for row in rows) for activity in ACTIVITIES}
        busy_s = sum(float(row[place][3]) for row in rows) / max(1, sum(seen.values()))
        seconds.append({activity: count * busy_s for activity, count in seen.items()})
    mine = seconds.pop(one)
    if not any(mine.values()):
        return ""
    return max(ACTIVITIES, key=lambda activity: mine[activity] - statistics.median(each[activity] for each in seconds))
