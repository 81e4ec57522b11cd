"""Splits each global batch into one part per rank, for a loader without a team."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from lockstep._data.assignment import ShardAssignment
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import StepPlan, plan_step

_MOST_BATCHES = 10**9
"""The largest number of batches in a pass."""
_BEHIND_ALL_ROWS = 1 << 40


@dataclass(kw_only=True, slots=True)
class RankParts(ShardAssignment):
    """One shard per rank, and no empty one: a rank without a sample takes the sample of another
    rank.

    The random streams of reading depend on seed and position only, not on the number of ranks.
    """

    @property
    @override
    def whole(self) -> int:
        return _BEHIND_ALL_ROWS

    @override
    def plan(self, number: int, sizes: tuple[int, ...]) -> StepPlan:
        rank = self.rank if self.rank < sizes[0] else self.rank % sizes[0]
        return plan_step(number, sizes, rank, even_blocks(self.world_size, self.num_shards))


def rank_parts(rank: int, world_size: int, seed: int) -> RankParts:
    """Return the assignment of a rank."""
    return RankParts(rank=rank, world_size=world_size, num_shards=world_size, seed=seed, loader=0, by_row=True)


def first_step(epoch: int) -> int:
    """Return the step number of the first batch of an epoch. No two batches share one, at any
    length of an epoch, so each has separate random streams."""
    return epoch * _MOST_BATCHES + 1
