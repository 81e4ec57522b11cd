"""Which rank of a script that does not use lockstep is slower than the others, and what that costs all of them.

Judged from the black boxes of all ranks (``script_clock``). A rank is slow if it is busy for longer than the others in nearly
every step, and the others wait for it. Each rank measures durations with its own clock, so the machines' clocks may differ.

On a GPU, the wait after the backward pass may be for the rank's own GPU, which hides how long it is busy: such a rank is slow
only if it hardly waits at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.explain.script_clock import WINDOW
from lockstep.explain.slow_ranks import LEAST_COST, NEARLY_ALWAYS, REMEDIES, SLOW, slow_in
from lockstep.explain.split import ACTIVITIES

_LEAST_WINDOWS = 3
_LEAST_S = 1.0
"""Short steps are judged over more windows: a delay of less than a second does not make a rank slow."""
_BUSY_ON_GPU = 0.8
"""The share of its own time for which a rank with a GPU must be busy to be called slow."""
_LEAST_SENT, _LEAST_SENT_S, _MOST_SENT = 6, 5.0, 20
"""Windows that a launcher sends: up to 2.5 s older for one rank than for another, and those that both have must suffice."""
_FORGOTTEN_AFTER = 60
"""After this many looks in which a reported rank was not slow, it is reported again if it becomes slow again."""

_NUMBER, _BUSY_20, _BUSY_50, _BUSY, _WAITED, _SAMPLES = range(6)
"""Columns of a window: see ``ScriptClock.history``."""
Window = Sequence[Any]


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
    """In which it loses most time, one of ``ACTIVITIES``; empty: it was not sampled often enough."""
    location: str
    """The line of the script at which it was sampled most often in that activity; empty: unknown."""

    def describe(self) -> str:
        """What it is slow in, and a remedy, for the user."""
        text = (
            f"rank {self.rank} on {self.host} is slow, up to step {self.step}: it is busy {self.times:.1f} times as long as "
            f"the other ranks, which wait for it for {self.cost:.0%} of the time."
        )
        if not self.activity:
            return text
        at = f", mostly at {self.location}" if self.location else ""
        return f"{text} It loses that in {ACTIVITIES[self.activity]}{at}. {REMEDIES[self.activity]}."


class SlowScriptRanks:
    """Looks for slow ranks repeatedly, and reports each once."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        """By reported rank, the number of looks since it was last slow."""

    def look(self, records: Sequence[Mapping[str, Any]]) -> SlowScriptRank | None:
        """The slow rank that was not reported yet, if there is one, from the newest records of all ranks."""
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
    rows = _newest_common([(record.get("steps") or {}).get("windows", ()) for record in records])
    if not rows:
        return None
    slowest = [max(range(len(row)), key=lambda index: float(row[index][_BUSY_20])) for row in rows]
    suspect = statistics.mode(slowest)

    def typical(row: Sequence[Window], column: int) -> float:
        return statistics.median_low(float(window[column]) for index, window in enumerate(row) if index != suspect)

    num_slow = sum(
        index == suspect and float(row[suspect][_BUSY_20]) > SLOW * typical(row, _BUSY_50)
        for row, index in zip(rows, slowest, strict=True)
    )
    busy_s, waited_s = (sum(float(row[suspect][column]) for row in rows) for column in (_BUSY, _WAITED))
    cost = sum(typical(row, _WAITED) - row[suspect][_WAITED] for row in rows) / (busy_s + waited_s)
    if num_slow < NEARLY_ALWAYS * len(rows) or cost < LEAST_COST:
        return None
    record = records[suspect]
    if record["steps"].get("on_gpu") and busy_s < _BUSY_ON_GPU * (busy_s + waited_s):
        return None
    others_busy_s = sum(typical(row, _BUSY) for row in rows)
    seconds_by_rank = [_seconds([row[index] for row in rows]) for index in range(len(records))]
    activity = slow_in(seconds_by_rank, suspect)[0] if any(seconds_by_rank[suspect].values()) else ""
    return SlowScriptRank(
        rank=int(record["rank"]),
        activity=activity,
        times=busy_s / others_busy_s if others_busy_s else float("inf"),
        cost=cost,
        host=str(record["host"]),
        step=WINDOW * int(rows[-1][suspect][_NUMBER]),
        location=str(record["steps"].get("places", {}).get(activity, "")),
    )


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
        "places": steps.get("places", {}),
        "on_gpu": steps.get("on_gpu", False),
    }


def _duration_s(window: Window) -> float:
    return WINDOW * (float(window[_BUSY]) + float(window[_WAITED]))


def _newest_common(windows_by_rank: Sequence[Sequence[Window]]) -> list[list[Window]]:
    """The newest consecutive windows that all ranks have, by window and rank: as many as are needed; empty: too few."""
    by_number = [{int(window[_NUMBER]): window for window in windows} for windows in windows_by_rank]
    common = set(by_number[0]).intersection(*by_number[1:])
    rows: list[list[Window]] = []
    number, took_s = max(common, default=0), 0.0
    while number in common and (len(rows) < _LEAST_WINDOWS or took_s < _LEAST_S):
        rows.insert(0, [windows[number] for windows in by_number])
        took_s += max(map(_duration_s, rows[0]))
        number -= 1
    return rows if len(rows) >= _LEAST_WINDOWS and took_s >= _LEAST_S else []


def _seconds(windows: Sequence[Window]) -> dict[str, float]:
    """How long a rank was busy with each activity, from the samples of its stack."""
    samples = {activity: sum(int(window[_SAMPLES].get(activity, 0)) for window in windows) for activity in ACTIVITIES}
    sample_s = sum(float(window[_BUSY]) for window in windows) / max(1, sum(samples.values()))
    return {activity: count * sample_s for activity, count in samples.items()}
