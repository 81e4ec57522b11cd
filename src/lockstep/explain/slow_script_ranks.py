"""Which rank of a script that does not use lockstep is slower than the others, and what that costs all of them.

Judged from the black boxes of all ranks (``script_clock``). A rank is slow if it is busy for longer than the others in nearly
every step, and the others wait for it. Each rank measures durations with its own clock, so the machines' clocks may differ.
Where they wait at another place than between backward pass and optimizer step, samples must tell (``waiting_samples``).

On a GPU, the wait after the backward pass may be for the rank's own GPU, which hides how long it is busy: such a rank is slow
only if it hardly waits at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.explain.script_clock import BUSY, BUSY_20, BUSY_50, NUMBER, SAMPLES, WAITED, WINDOW, Window
from lockstep.explain.slow_ranks import LEAST_COST, NEARLY_ALWAYS, REMEDIES, SLOW, slow_in
from lockstep.explain.split import ACTIVITIES
from lockstep.explain.waiting_samples import Awaited, Row, busy_share, find_awaited, waits_more

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
_FORGOTTEN_AFTER = 60
"""After this many looks in which a reported rank was not slow, it is reported again if it becomes slow again."""


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
    common = _common([(record.get("steps") or {}).get("windows", ()) for record in records])
    awaited = _awaited(_newest(common, _LEAST_S))
    if awaited is not None and busy_share(common[-awaited.num_rows :], awaited.position) < _MOSTLY:
        awaited = _awaited(_newest(common, _LONGER_S))
    awaited = awaited or find_awaited(common)
    if awaited is None:
        return None
    record, rows = records[awaited.position], common[-awaited.num_rows :]
    if record["steps"].get("on_gpu") and busy_share(rows, awaited.position) < _BUSY_ON_GPU:
        return None
    seconds_by_rank = [_seconds([row[index] for row in rows]) for index in range(len(records))]
    activity = slow_in(seconds_by_rank, awaited.position)[0] if any(seconds_by_rank[awaited.position].values()) else ""
    return SlowScriptRank(
        rank=int(record["rank"]),
        activity=activity,
        times=awaited.times,
        cost=awaited.cost,
        host=str(record["host"]),
        step=WINDOW * int(rows[-1][awaited.position][NUMBER]),
        location=str(record["steps"].get("places", {}).get(activity, "")),
    )


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
    busy_s, waited_s, others_busy_s = (
        sum(float(row[suspect][BUSY]) for row in rows),
        sum(float(row[suspect][WAITED]) for row in rows),
        sum(typical(row, BUSY) for row in rows),
    )
    cost = sum(typical(row, WAITED) - row[suspect][WAITED] for row in rows) / (busy_s + waited_s)
    if num_slow < NEARLY_ALWAYS * len(rows) or cost < LEAST_COST or waits_more(rows, suspect):
        return None
    return Awaited(suspect, busy_s / others_busy_s if others_busy_s else float("inf"), cost, len(rows))


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
        took_s += max(map(_duration_s, rows[-count]))
    return list(rows[len(rows) - count :]) if count >= _LEAST_WINDOWS and took_s >= least_s else []


def _seconds(windows: Sequence[Window]) -> dict[str, float]:
    """How long a rank was busy with each activity, from the samples of its stack."""
    counts = {activity: sum(int(window[SAMPLES].get(activity, 0)) for window in windows) for activity in ACTIVITIES}
    sample_s = sum(float(window[BUSY]) for window in windows) / max(
        1, sum(sum(window[SAMPLES].values()) for window in windows)
    )
    return {activity: count * sample_s for activity, count in counts.items()}
