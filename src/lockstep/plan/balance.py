"""Blocks that suit processes of unequal speed. Pure: from the same measurements all ranks come to the same blocks.

A process that is slower than the others is given fewer shards. How long a step takes is predicted from what was measured: how
long each rank takes for a shard, and for what it does once a step. The slowest rank is waited for. Then gradients are
exchanged, which takes longer where blocks consist of several subtrees, since all of these are sent.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from lockstep.plan.blocks import Blocks, blocks_of, even_blocks

LEAST_GAIN = 0.05
"""Shards move if a step is predicted to become shorter by this share, and..."""
_STANDARD_ERRORS = 4
"""... by so many times what a rank's mean over a window is uncertain, since some rank always seems slower than the others."""
_STEPS, _SECONDS = 8, 0.5
"""A window has at least so many steps, in which the busiest rank is busy for so long..."""
_MOST_DOUBLINGS = 2
"""... and twice as many after each move, so that shards do not move forever; but at most this often doubled."""
_MOST_DOUBTS = 4
"""Twice as many, too, as long as there seems to be a gain that may be noise; at most this often doubled."""
_HALVINGS = 60

SAMPLES, DATA, FORWARD, BACKWARD, SCRIPT, BUSY, IN_SHARDS, IDLE, AHEAD = range(9)
"""What each rank reports in each phase: its samples, the seconds for getting and computing them, those of the script's other
code, all these together, those of them that it spent on its shards (the others are the same whatever its shards), those since
the phase before in which it was not busy, and the last step that its loaders may have planned."""
Row = Sequence[float]
_BUSY, _IDLE = itemgetter(BUSY), itemgetter(IDLE)


def can_balance(world_size: int, num_shards: int) -> bool:
    """Whether there are enough shards for blocks of other sizes to be worth it."""
    return world_size > 1 and num_shards >= 2 * world_size


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a step takes, in seconds."""

    shard_s: Sequence[float]
    """By rank: what each of its shards takes."""
    once_s: Sequence[float]
    """By rank: what it does once a step, whatever its shards."""
    exchange_s: float
    """What remains of a step: exchanging gradients, above all."""
    num_roots: int
    """The most subtrees that a rank had to send, when this was measured."""
    jitter_s: float = 0.0
    """What the ranks wait longer in each step than they would if none was ever slower than it is on average."""
    error_s: float = 0.0
    """The standard error of a rank's mean busy time."""

    def predicted_s(self, blocks: Blocks) -> float:
        """How long a step takes with these blocks."""
        busy = max(map(_affine, self.once_s, blocks.sizes, self.shard_s))
        return busy + self.jitter_s + self.exchange_s * (blocks.most_roots + 1) / (self.num_roots + 1)

    def better_of(self, other: Pace | None) -> Pace:
        """The shorter of both times, each: what was slow for a moment does not count."""
        if other is None:
            return self
        return Pace(
            shard_s=list(map(min, self.shard_s, other.shard_s)),
            once_s=list(map(min, self.once_s, other.once_s)),
            exchange_s=min(self.exchange_s, other.exchange_s),
            num_roots=self.num_roots,
            jitter_s=min(self.jitter_s, other.jitter_s),
            error_s=max(self.error_s, other.error_s),
        )


def _affine(constant: float, number: int, factor: float) -> float:
    return constant + number * factor


def fair_sizes(num: int, each_s: Sequence[float], once_s: Sequence[float]) -> list[int]:
    """Numbers of equal things for workers of these speeds, at least one each, so that the last is ready as early as possible.

    Args:
        num: how many there are: at least one for each worker.
        each_s: how long each worker takes for one.
        once_s: how long each is busy besides.
    """
    each_s = [max(seconds, 1e-9) for seconds in each_s]

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


def best_blocks(num_shards: int, pace: Pace) -> Blocks:
    """The blocks with the shortest predicted step. Some are multiples of 2, 4, ...: of fewer subtrees."""
    world_size = len(pace.shard_s)
    candidates = [even_blocks(world_size, num_shards)]
    unit = 1
    while unit < num_shards and (num_units := -(-num_shards // unit)) >= world_size:
        numbers = fair_sizes(num_units, [unit * seconds for seconds in pace.shard_s], pace.once_s)
        ends = [min(num_shards, unit * end) for end in itertools.accumulate(numbers, initial=0)]
        candidates.append(blocks_of(tuple(itertools.starmap(_length, itertools.pairwise(ends)))))
        unit *= 2
    return min(candidates, key=pace.predicted_s)


def _length(start: int, end: int) -> int:
    return end - start


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Blocks that are better than those in force."""

    blocks: Blocks
    gain: float
    """The share of a step's time that they are predicted to save."""


def first_blocks(num_shards: int, speeds: Sequence[float]) -> Proposal | None:
    """Blocks for the beginning of a launch, before anything is measured. None: even ones.

    Args:
        num_shards: V.
        speeds: of the ranks, as far as it can be told beforehand, in any unit.
    """
    even = even_blocks(len(speeds), num_shards)
    shard_s = [1 / speed for speed in speeds]
    pace = Pace(shard_s=shard_s, once_s=[0.0] * len(speeds), exchange_s=0.0, num_roots=even.most_roots)
    best = best_blocks(num_shards, pace)
    gain = 1 - pace.predicted_s(best) / pace.predicted_s(even)
    return Proposal(blocks=best, gain=gain) if gain >= LEAST_GAIN else None


class Balancer:
    """Measures the ranks, window by window, and says when other blocks would be better.

    A rank counts as slow in something if it was so in two windows that follow each other; before the first is over it may have
    compiled its kernels, and some other program may take its processor in any.

    Args:
        blocks: those in force.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._num_moves = 0
        self.restart(blocks)

    def restart(self, blocks: Blocks) -> None:
        """Measure anew, with these blocks in force."""
        self._blocks = blocks
        self._num_doubts = 0
        self._before: Pace | None = None
        self._clear()

    def _clear(self) -> None:
        self._num_steps = 0
        self._sums: list[float] = [0.0] * (self._blocks.world_size * (AHEAD + 1))
        self._slowest_s = self._exchange_s = self._squares = 0.0
        """Over all steps: how long the rank was busy that was slow in it; how long the rank was not busy that waited the least;
        the squares of all ranks' busy times."""
        self._in_step = [0.0] * self._blocks.world_size
        """How long each rank was busy in the phases of the current step."""

    def add(self, rows: Sequence[Row]) -> None:
        """Add a phase, with the rows of all ranks."""
        self._sums = list(map(operator.add, self._sums, itertools.chain.from_iterable(rows)))
        self._in_step = list(map(operator.add, self._in_step, map(_BUSY, rows)))
        self._exchange_s += min(map(_IDLE, rows))

    def end_step(self) -> Proposal | None:
        """The step is over."""
        self._num_steps += 1
        self._slowest_s += max(self._in_step)
        self._squares += math.fsum(map(operator.mul, self._in_step, self._in_step))
        self._in_step = [0.0] * len(self._in_step)
        factor = 1 << min(self._num_moves, _MOST_DOUBLINGS) + self._num_doubts
        if self._num_steps < _STEPS * factor or self._slowest_s < _SECONDS * factor:
            return None
        before, self._before = self._before, self._pace()
        self._clear()
        if before is None or self._before is None:
            return None
        pace = self._before.better_of(before)
        best = best_blocks(self._blocks.num_shards, pace)
        now_s, then_s = pace.predicted_s(self._blocks), pace.predicted_s(best)
        if now_s - then_s < LEAST_GAIN * now_s:
            self._num_doubts = 0
            return None
        if now_s - then_s < _STANDARD_ERRORS * pace.error_s:
            self._num_doubts = min(self._num_doubts + 1, _MOST_DOUBTS)
            return None
        self._num_moves += 1
        return Proposal(blocks=best, gain=1 - then_s / now_s)

    def _column(self, number: int) -> list[float]:
        return self._sums[number :: AHEAD + 1]

    def _pace(self) -> Pace | None:
        """Of the window; None: a rank had no samples."""
        samples, in_shards, busy = map(self._column, (SAMPLES, IN_SHARDS, BUSY))
        if not all(samples):
            return None
        num_steps, a_shard = self._num_steps, math.fsum(samples) / self._blocks.num_shards / self._num_steps
        squares = self._squares - math.fsum(map(operator.mul, busy, busy)) / num_steps  # of the differences from each mean
        return Pace(
            shard_s=[seconds / number * a_shard for seconds, number in zip(in_shards, samples, strict=True)],
            once_s=[max(0.0, seconds) / num_steps for seconds in map(operator.sub, busy, in_shards)],
            exchange_s=max(0.0, self._exchange_s) / num_steps,
            num_roots=self._blocks.most_roots,
            jitter_s=(self._slowest_s - max(busy)) / num_steps,
            error_s=math.sqrt(max(0.0, squares) / len(busy)) / num_steps,
        )
