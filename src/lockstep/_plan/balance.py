"""Blocks that suit processes of unequal speed. Pure: from the same measurements all ranks come to
the same blocks.

A process that is slower than the others gets fewer shards. What each rank takes for a shard is
measured, and what it does once a step. So it is known what steps would have taken with other
blocks: as long as the slowest rank. Blocks that suit a window of steps are first evaluated against
the times of the next window, before a shard moves; and after a move, steps must be shorter.

::

    window 1           window 2                          window 3
    measure  ------->  evaluate the best blocks  ----->  measure with the new blocks
                       of window 1                       steps are shorter: keep them
                       gain < 5 %: stay                  otherwise: go back; the second time, stop
                       gain >= 5 % and 4 standard
                       errors: move to the best
                       blocks of window 2
                       otherwise: extend window 2,
                       to at most 16 times its length

Two windows, because the best blocks of a window always look better in it: they fit its noise. The
noise of the next window did not influence the choice, so the gain there is not overestimated."""

from __future__ import annotations

import heapq
import itertools
import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep._plan.blocks import Blocks, blocks_of

LEAST_GAIN = 0.05
"""The least share of a step's time that a move must be expected to save."""
_STANDARD_ERRORS = 4
"""The least expected gain, in standard errors of its mean: some rank always seems slower than the
others."""
_PIECES, _PIECE_S = 8, 0.25
"""The least number of pieces in a window, and the least time that a piece keeps the busiest rank
busy. A piece is one step, or several short ones. (A rank with a quota of processor time runs at
full speed, then not at all, in periods of a tenth of a second, which one short step does not
show.)"""
_MOST_WINDOWS = 16
"""The largest factor by which a window is extended while its gain may be noise."""
_MAX_FAILED_MOVES = 2
"""The number of moves without a gain after which balancing stops."""
# A fixed number needs no tolerance: 2 ** -60 of the longest time is below anything a clock
# measures.
_HALVINGS = 60

SAMPLES, DATA, FORWARD, BACKWARD, SCRIPT, BUSY, IN_SHARDS, IDLE, AHEAD = range(9)
"""The columns of what each rank reports in each phase: its samples; the seconds for getting and
computing them; the seconds of the script's other code; the sum of these seconds; the share of the
sum that depends on its shards; the seconds since the phase before in which it was not busy; and the
last step that its loaders may have planned."""
Row = Sequence[float]


def can_balance(world_size: int, num_shards: int) -> bool:
    """Whether there are enough shards for blocks of other sizes to be worth it."""
    return world_size > 1 and num_shards >= 2 * world_size


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """How long a step takes, in seconds."""

    shard_s: Sequence[float]
    """The time of one shard on each rank."""
    once_s: Sequence[float]
    """The time on each rank that does not depend on its shards."""
    step_s: float
    """The whole step, waiting for others and exchanging gradients included."""

    def busy_s(self, blocks: Blocks) -> float:
        """Returns how long the slowest rank would have been busy with these blocks."""
        return max(map(_affine, self.once_s, blocks.sizes, self.shard_s))

    def gain(self, before: Blocks, after: Blocks) -> float:
        """Returns the share of the step that these blocks would have saved."""
        return (self.busy_s(before) - self.busy_s(after)) / self.step_s


def usual(pieces: Sequence[StepTimes]) -> StepTimes:
    """Returns the median times of these pieces, which a momentary stall does not change."""
    return StepTimes(
        shard_s=list(map(statistics.median, zip(*(times.shard_s for times in pieces), strict=True))),
        once_s=list(map(statistics.median, zip(*(times.once_s for times in pieces), strict=True))),
        step_s=statistics.median(times.step_s for times in pieces),
    )


def _affine(constant: float, number: int, factor: float) -> float:
    return constant + number * factor


def fair_sizes(num: int, each_s: Sequence[float], once_s: Sequence[float]) -> list[int]:
    """Numbers of equal things for workers of these speeds, at least one each, so that the last is
    ready as early as possible.

    Args:
        num: how many there are: at least one for each worker.
        each_s: how long each worker takes for one.
        once_s: how long each is busy otherwise.
    """
    each_s = [max(seconds, 1e-9) for seconds in each_s]

    # The number of things that are ready grows with time, so the latest time by which no more than
    # ``num`` are ready is found by halving. What rounding down leaves over (fewer things than there
    # are workers) then goes, one by one, to the worker that would be ready with it soonest.

    def ready_by(time_s: float) -> list[int]:
        return [max(1, min(num, math.floor((time_s - once) / each))) for each, once in zip(each_s, once_s, strict=True)]

    low_s, high_s = 0.0, max(map(_affine, once_s, itertools.repeat(num), each_s))
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if sum(ready_by(middle_s)) <= num:
            low_s = middle_s
        else:
            high_s = middle_s
    sizes = ready_by(low_s)
    soonest = [(_affine(once_s[worker], size + 1, each_s[worker]), worker) for worker, size in enumerate(sizes)]
    heapq.heapify(soonest)
    for _ in range(num - sum(sizes)):
        _, worker = soonest[0]
        sizes[worker] += 1
        heapq.heapreplace(soonest, (_affine(once_s[worker], sizes[worker] + 1, each_s[worker]), worker))
    return sizes


def best_blocks(num_shards: int, times: StepTimes) -> Blocks:
    """Returns the blocks with which the slowest rank is ready as early as possible."""
    return blocks_of(tuple(fair_sizes(num_shards, times.shard_s, times.once_s)))


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A proposal of blocks that are better than the blocks in force."""

    blocks: Blocks
    gain: float
    """The share of a step's time that they are expected to save."""


@dataclass(frozen=True, kw_only=True)
class _Move:
    """The newest move."""

    away_from: Blocks
    step_s: float
    """The time of a step with the blocks before the move."""


class Balancer:
    """A measurement of the ranks, window by window, which proposes blocks that would be better.

    Args:
        blocks: the blocks in force.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._num_moves = 0
        """The number of moves so far. Windows become longer with each, so that shards do not move
        forever if a rank is slow intermittently."""
        self._newest: _Move | None = None
        """The newest move, until steps have turned out to be shorter."""
        self._num_failed_moves = 0
        """The number of moves after which steps were no shorter."""
        self.restart(blocks)

    def restart(self, blocks: Blocks) -> None:
        """Begins a new window, with these blocks in force."""
        self._blocks = self._candidate = blocks
        """The blocks in force, and the blocks that suit the window before."""
        self._pieces: list[StepTimes] = []
        """The times of each piece of the window so far."""
        self._begin_piece()

    def _begin_piece(self) -> None:
        self._num_steps = 0
        self._sums: list[float] = [0.0] * (self._blocks.world_size * (AHEAD + 1))

    def add(self, rows: Sequence[Row]) -> None:
        """Adds a phase, with the rows of all ranks."""
        self._sums = list(map(operator.add, self._sums, itertools.chain.from_iterable(rows)))

    def end_step(self) -> Proposal | None:
        """Ends a step. Returns blocks that are better, at the end of a window that shows it."""
        self._num_steps += 1
        if max(self._column(BUSY)) < _PIECE_S or self._num_failed_moves == _MAX_FAILED_MOVES:
            return None
        if all(self._column(SAMPLES)):  # or else some rank had nothing to do
            self._pieces.append(self._times())
        self._begin_piece()
        length = _PIECES * (1 + self._num_moves)
        return self._end_window(length) if self._pieces and len(self._pieces) % length == 0 else None

    def _end_window(self, length: int) -> Proposal | None:
        pieces, newest = self._pieces, self._newest
        times, self._newest = usual(pieces), None
        if newest is not None and times.step_s >= newest.step_s:
            # The times of shards cannot tell this beforehand: blocks of other sizes may have more
            # subtrees, so that exchanging gradients takes longer.
            self._num_failed_moves += 1
            return self._propose(newest.away_from, 1 - newest.step_s / times.step_s)
        gains = [each.gain(self._blocks, self._candidate) for each in pieces]
        gain, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
        seems, is_certain = gain >= LEAST_GAIN, gain >= _STANDARD_ERRORS * error
        if seems and not is_certain and len(pieces) < _MOST_WINDOWS * length:
            return None
        self._candidate, self._pieces = best_blocks(self._blocks.num_shards, times), []
        gain = times.gain(self._blocks, self._candidate)
        if not seems or not is_certain or gain < LEAST_GAIN:
            return None
        self._newest = _Move(away_from=self._blocks, step_s=times.step_s)
        return self._propose(self._candidate, gain)

    def _propose(self, blocks: Blocks, gain: float) -> Proposal:
        self._num_moves += 1
        return Proposal(blocks=blocks, gain=gain)

    def _column(self, number: int) -> list[float]:
        return self._sums[number :: AHEAD + 1]

    def _times(self) -> StepTimes:
        """Returns the times of the piece that has just ended."""
        samples, in_shards, busy, idle = map(self._column, (SAMPLES, IN_SHARDS, BUSY, IDLE))
        a_shard = math.fsum(samples) / self._blocks.num_shards / self._num_steps
        return StepTimes(
            shard_s=[seconds / number * a_shard for seconds, number in zip(in_shards, samples, strict=True)],
            once_s=[max(0.0, seconds) / self._num_steps for seconds in map(operator.sub, busy, in_shards)],
            step_s=max(map(operator.add, busy, idle)) / self._num_steps,
        )
