"""The part of a loader's batches that one process gets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lockstep._data.block_schedule import BlockSchedule
from lockstep._data.streams import Purpose, reseed
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import StepPlan, plan_step

T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class ShardAssignment:
    """The shards of a loader's batches that belong to this process, and the seeds of their random
    streams."""

    rank: int
    world_size: int
    num_shards: int
    seed: int
    loader: int
    """The number of the loader among the prepared ones. Each has separate random streams."""
    accumulate: int = 1
    """The number of global batches per step."""
    allows_other_data: bool = False
    """Whether a resumed pass may continue although its earlier samples differ (``--allow
    data``)."""
    moves: BlockSchedule | None = None
    """The schedule of blocks of shards; None: the blocks are even and never change."""
    by_row: bool = False
    """Whether each sample of a DataLoader is fetched in a random stream that belongs to
    its row in the global batch, rather than to its shard."""
    is_follower: bool = False
    """Whether the pass that begins follows the pass of another loader, which counts the steps.
    (Nothing moves while a run has several loaders.)"""

    def plan(self, number: int, sizes: tuple[int, ...]) -> StepPlan:
        """Returns this process's part of a step whose global batches have ``sizes`` samples."""
        if self.moves is None:
            blocks = even_blocks(self.world_size, self.num_shards)
        else:
            blocks = self.moves.newest if self.is_follower else self.moves.at(number)
        return plan_step(number, sizes, self.rank, blocks)

    @property
    def whole(self) -> int:
        """The number in the keys of random streams for data that all ranks read: the first number
        after the shards."""
        return self.num_shards

    def group(self, batches: Iterable[T]) -> Iterator[Sequence[T]]:
        """Groups global batches into steps. The last step of a pass may have fewer than
        ``accumulate``."""
        if self.accumulate == 1:
            return zip(batches, strict=True)
        remaining = iter(batches)
        return iter(lambda: list(itertools.islice(remaining, self.accumulate)), [])

    def num_steps(self, num_batches: int) -> int:
        """Returns the number of steps for ``num_batches`` global batches."""
        return -(-num_batches // self.accumulate)

    def reseed(self, purpose: Purpose, *key: int) -> None:
        """Starts the streams of a key of this loader."""
        reseed(self.seed, purpose, self.loader, *key)
