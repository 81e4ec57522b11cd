"""Which rank of a script that does not use lockstep is slower than the others, and what that costs all of them.

Judged from the black boxes of all ranks (``script_clock``). A rank is slow if it is busy for longer than the others in nearly
every step, and the others wait for it. Each rank measures durations by its own clock, so machines need no common one.

On a GPU a rank that waits behind its backward pass may wait for its own GPU, which hides that it is busy for longer: it is slow
only if it hardly waits at all.
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
"""Short steps are judged over more windows: a delay of less than a second does not make a rank slow."""
_BUSY_ON_GPU = 0.8
"""The share of its own time for which a rank with a GPU must be busy to be called slow."""
_LEAST_SENT, _LEAST_SENT_S, _MOST_SENT = 6, 5.0, 20
"""What other launchers send is up to 2.5 s older for one rank than for another, and the windows that both have must suffice."""
_FORGOTTEN_AFTER = 60
"""After this many looks in which a reported rank was not slow, it is reported again if it becomes slow again."""


@dataclass(frozen=True, kw_only=True)
class SlowScriptRank:
    """A rank that the others wait for."""

    rank: int
    host: str
    step: int
    """The newest step that it was judged by."""
    times: float
    """Its busy time per step, as a multiple of the median of the others."""
    cost: float
    """The share of all time that the others spend waiting for it."""
    activity: str
    """The activity in which it loses the time, one of ``ACTIVITIES``; empty: it was not sampled often enough."""
    place: str
    """The line of the script at which it was most often sampled in that activity; empty: unknown."""

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
    """Looks for slow ranks repeatedly, and reports each once."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        """By reported rank, the number of looks since it was last slow."""

    def look(self, records: Sequence[Mapping[str, Any]]) -> SlowScriptRank | None:
        """The rank that is slow and was not yet reported, from the newest records of all ranks."""
        slow = judge(records)
        self._known = {rank: since + 1 for rank, since in self._known.items() if since < _FORGOTTEN_AFTER}
        if slow is None:
            return None
        is_new = slow.rank not in self._known
        self._known[slow.rank] = 0
        return slow if is_new else None


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
    slowest = [max(range(len(row)), key=lambda index: float(row[index][1])) for row in rows]
    suspect = statistics.mode(slowest)
    slow = [row for row, index in zip(rows, slowest, strict=True) if index == suspect and _is_slow(row, suspect)]
    lost_s = [statistics.median_low(_others(row, suspect, 4)) - row[suspect][4] for row in rows]
    cost = sum(lost_s) / sum(float(row[suspect][3]) + float(row[suspect][4]) for row in rows)
    if len(slow) < NEARLY_ALWAYS * len(rows) or cost < LEAST_COST:
        return None
    busy_s, waited_s = (sum(float(row[suspect][column]) for row in rows) for column in (3, 4))
    if records[suspect]["steps"].get("on_gpu") and busy_s < _BUSY_ON_GPU * (busy_s + waited_s):
        return None
    others_busy_s = sum(statistics.median_low(_others(row, suspect, 3)) for row in rows)
    activity = _slow_in(rows, suspect)
    record = records[suspect]
    return SlowScriptRank(
        rank=int(record["rank"]),
        host=str(record["host"]),
        step=WINDOW * int(rows[-1][suspect][0]),
        times=busy_s / others_busy_s if others_busy_s else float("inf"),
        cost=cost,
        activity=activity,
        place=str(record["steps"].get("places", {}).get(activity, "")),
    )


def newest_steps(steps: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of ``ScriptClock.history`` what ``judge`` needs, with no more windows than it can use, to be sent. Pure."""
    steps = steps or {}
    windows = steps.get("windows", ())[-_MOST_SENT:]
    count, took_s = 0, 0.0
    while count < len(windows) and (count < _LEAST_SENT or took_s < _LEAST_SENT_S):
        count += 1
        took_s += WINDOW * (float(windows[-count][3]) + float(windows[-count][4]))
    return {
        "windows": windows[len(windows) - count :],
        "places": steps.get("places", {}),
        "on_gpu": steps.get("on_gpu", False),
    }


def _newest(windows: Sequence[Mapping[int, Sequence[Any]]]) -> list[list[Sequence[Any]]]:
    """The newest consecutive windows that all ranks have, by window and rank: as many as are needed; empty: too few."""
    common = set(windows[0]).intersection(*windows[1:])
    rows: list[list[Sequence[Any]]] = []
    number, took_s = max(common, default=0), 0.0
    while number in common and (len(rows) < _LEAST_WINDOWS or took_s < _LEAST_S):
        row = [by_number[number] for by_number in windows]
        took_s += WINDOW * max(float(window[3]) + float(window[4]) for window in row)
        rows.insert(0, row)
        number -= 1
    return rows if len(rows) >= _LEAST_WINDOWS and took_s >= _LEAST_S else []


def _is_slow(row: Sequence[Sequence[Any]], suspect: int) -> bool:
    """Whether a rank was slower in nearly all steps of a window than the others typically are."""
    return float(row[suspect][1]) > SLOW * statistics.median_low(_others(row, suspect, 2))


def _others(row: Sequence[Sequence[Any]], suspect: int, column: int) -> list[float]:
    return [float(window[column]) for index, window in enumerate(row) if index != suspect]


def _slow_in(rows: Sequence[Sequence[Sequence[Any]]], suspect: int) -> str:
    """The activity in which a rank loses most against the median of the others, according to the samples of its stack."""
    seconds = []
    for index in range(len(rows[0])):
        seen = {activity: sum(int(row[index][5].get(activity, 0)) for row in rows) for activity in ACTIVITIES}
        busy_s = sum(float(row[index][3]) for row in rows) / max(1, sum(seen.values()))
        seconds.append({activity: count * busy_s for activity, count in seen.items()})
    of_suspect = seconds.pop(suspect)
    if not any(of_suspect.values()):
        return ""
    return max(ACTIVITIES, key=lambda activity: of_suspect[activity] - statistics.median(each[activity] for each in seconds))
