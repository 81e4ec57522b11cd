"""The order in which the rows of a comparison run. Pure."""

from __future__ import annotations

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


def _schedule(comparison: Comparison) -> Iterator[Turn]:
    number = 0
    for turn_round in range(1, comparison.rounds + 1):
        order = range(len(comparison.rows))
        for index in order if turn_round % 2 else reversed(order):
            number += 1
            yield Turn(number=number, round=turn_round, index=index)


def _is_due(result: RowResult, turn_round: int) -> bool:
    return result.failure is None and turn_round not in result.measured
