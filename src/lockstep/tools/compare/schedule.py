"""The order in which the rows of a comparison run, and the time left. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.tools.compare.comparison import Comparison, RowResult


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One run of one row."""

    number: int
    """Place in the whole schedule, from 1."""
    round: int
    index: int
    """Of the row."""


def turns_left(comparison: Comparison) -> list[Turn]:
    """The runs left: each row once a round, so that a temporary slowdown of the machine affects all rows.

    Every second round goes backwards, which spreads slow drifts (heat, say) evenly over the rows. A row that failed once is
    not run again.
    """
    return [turn for turn in _schedule(comparison) if _is_due(comparison.rows[turn.index], turn.round)]


def seconds_left(comparison: Comparison) -> float | None:
    """Estimated time for the runs left: a row takes as long as it did, else as all did on average; None: none has ended."""
    taken = {result.row: _seconds_of(result) for result in comparison.rows}
    known = [seconds for seconds in taken.values() if seconds is not None]
    if not known:
        return None
    expected = {row: statistics.fmean(known) if seconds is None else seconds for row, seconds in taken.items()}
    return sum(expected[comparison.rows[turn.index].row] for turn in turns_left(comparison))


def _schedule(comparison: Comparison) -> Iterator[Turn]:
    number = 0
    for turn_round in range(1, comparison.rounds + 1):
        order = range(len(comparison.rows))
        for index in order if turn_round % 2 else reversed(order):
            number += 1
            yield Turn(number=number, round=turn_round, index=index)


def _is_due(result: RowResult, turn_round: int) -> bool:
    return result.failure is None and turn_round not in result.measured


def _seconds_of(result: RowResult) -> float | None:
    times = [run.command_s for run in result.runs if run.status == "ok" and run.command_s is not None]
    return statistics.fmean(times) if times else None
