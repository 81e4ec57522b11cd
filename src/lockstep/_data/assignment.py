"""One process's part of the batches of a loader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lockstep._data.moves import Moves
from lockstep._data.streams import Purpose, reseed
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import StepPlan, plan_step

T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class ShardAssignment:
    """Which shards of a loader's batches belong to this process, and the seeds of the random
    streams for them."""

    rank: int
    world_size: int
    num_shards: int
    seed: int
    loader: int
    """Number of the loader among those prepared; each draws from streams of its own."""
    accumulate: int = 1
    """Global batches per step."""
    allows_other_data: bool = False
    """Whether a pass may go on behind other samples than before the run was interrupted (``--allow
    data``)."""
    moves: Moves | None = None
    """Where the blocks of shards may change; None: they are even."""
    by_row: bool = False
    """Whether each sample of a DataLoader is fetched in a random stream of its own, which belongs
    to its row in the global batch, rather than to its shard."""
    is_follower: bool = False
    """Whether the pass that begins follows the pass of another loader, which counts the steps.
    (Nothing moves while a run has several loaders.)"""

    def plan(self, number: int, sizes: tuple[int, ...]) -> StepPlan:
        """This process's part of a step whose global batches have ``sizes`` samples."""
        if self.moves is None:
            blocks = even_blocks(self.world_size, self.num_shards)
        else:
            blocks = self.moves.newest if self.is_follower else self.moves.at(number)
        return plan_step(number, sizes, self.rank, blocks)

    @property
    def whole(self) -> int:
        """In the keys of random streams, the number of what all ranks read alike: behind those of
        the shards."""
        return self.num_shards

    def group(self, batches: Iterable[T]) -> Iterator[Sequence[T]]:
        """Group global batches into steps; the last step of a pass may have fewer than
        ``accumulate``."""
        if self.accumulate == 1:
            return zip(batches, strict=True)
        remaining = iter(batches)
        return iter(lambda: list(itertools.islice(remaining, self.accumulate)), [])

    def num_steps(self, num_batches: int) -> int:
        """Number of steps that ``num_batches`` global batches make."""
        return -(-num_batches // self.accumulate)

    def reseed(self, purpose: Purpose, *key: int) -> None:
        """Start the streams of a key of this loader."""
        reseed(self.seed, purpose, self.loader, *key)
