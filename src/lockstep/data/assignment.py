"""What is one process's of a loader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lockstep.data.streams import Purpose, reseed
from lockstep.plan.shards import StepPlan, plan_step

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardAssignment:
    """Which shards are this process's, and where its random streams start."""

    rank: int
    world_size: int
    num_shards: int
    seed: int
    loader: int
    """Number of the loader among those prepared: two loaders draw from different streams."""
    accumulate: int = 1
    """Global batches of a step."""

    def plan(self, number: int, sizes: tuple[int, ...]) -> StepPlan:
        """This process's part of a step whose global batches have these numbers of samples."""
        return plan_step(number, sizes, self.rank, self.world_size, self.num_shards)

    def group(self, batches: Iterable[T]) -> Iterator[Sequence[T]]:
        """The global batches of one step after another; the last step of a pass may have fewer."""
        if self.accumulate == 1:
            return zip(batches, strict=True)
        rest = iter(batches)
        return iter(lambda: list(itertools.islice(rest, self.accumulate)), [])

    def num_steps(self, num_batches: int) -> int:
        """How many steps so many global batches make."""
        return -(-num_batches // self.accumulate)

    def reseed(self, purpose: Purpose, *key: int) -> None:
        """Start the streams of a key of this loader."""
        reseed(self.seed, purpose, self.loader, *key)
