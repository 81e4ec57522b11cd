"""Global batches in one part for each rank, for a loader that has no team."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from lockstep.data.assignment import ShardAssignment
from lockstep.plan.blocks import even_blocks
from lockstep.plan.shards import StepPlan, plan_step

_MOST_BATCHES = 10**9
"""In a pass."""
_BEHIND_ALL_ROWS = 1 << 40


@dataclass(kw_only=True, slots=True)
class RankParts(ShardAssignment):
    """One shard for each rank, and none empty: a rank for which a batch has no sample takes that of another.

    What is read depends on the seed and the position alone, and not on the number of ranks.
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
    """The part of a rank."""
    return RankParts(rank=rank, world_size=world_size, num_shards=world_size, seed=seed, loader=0, by_row=True)


def first_step(epoch: int) -> int:
    """The number of the first batch of an epoch among all batches: each has random streams of its own, and an epoch may be as
    long as it likes."""
    return epoch * _MOST_BATCHES + 1
