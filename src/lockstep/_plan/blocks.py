"""Blocks of shards: which process runs which shards of a step.

No result depends on them: sums go through one tree over shard numbers (``plan.tree``), which
accepts any contiguous blocks. A run begins with blocks that are as even as possible. If a process
is slower than others, they may change (``plan.balance``).

Blocks are contiguous for two reasons. A block of n adjacent shards is at most 2 log2(n) subtrees,
so a process sends that many partial sums instead of n. And the ranks that have samples in a small
batch are the lowest ones (``num_active``), because the empty shards of a step are the last."""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from lockstep._base.errors import ConfigError
from lockstep._plan.tree import roots


def block(rank: int, world_size: int, num_shards: int) -> range:
    """Returns the shards that a process owns in even blocks, which are contiguous, in rank order,
    and at least one shard long.

    Raises:
        ConfigError: there are more processes than shards.
    """
    if world_size > num_shards:
        raise ConfigError(
            f"{world_size} processes but only {num_shards} shard{'s' if num_shards > 1 else ''}: each process needs at least "
            f"one. Start {'one process' if num_shards == 1 else f'at most {num_shards} processes'}, or a new run with "
            f"shards={world_size} or more.",
            code="world-size-above-shards",
        )
    return range(rank * num_shards // world_size, (rank + 1) * num_shards // world_size)


# Compared by identity: every step looks its plan up by the blocks, which would hash W numbers
# otherwise. ``blocks_of`` returns one object for equal sizes.
@dataclass(frozen=True, eq=False)
class Blocks:
    """The shards of every process: contiguous blocks in rank order, at least one shard each, all of
    them together."""

    bounds: tuple[int, ...]
    """The first shard of each rank; then V."""

    def __reduce__(self) -> Any:
        return blocks_of, (self.sizes,)

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return len(self.bounds) - 1

    @property
    def num_shards(self) -> int:
        """The number of shards, V."""
        return self.bounds[-1]

    @functools.cached_property
    def by_rank(self) -> tuple[range, ...]:
        """The shards of each rank."""
        return tuple(itertools.starmap(range, itertools.pairwise(self.bounds)))

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of shards of each rank."""
        return tuple(map(len, self.by_rank))

    @functools.cached_property
    def most(self) -> int:
        """The largest number of shards that a rank has."""
        return max(self.sizes)

    @functools.cached_property
    def roots(self) -> tuple[list[tuple[int, int]], ...]:
        """For each rank, start and size of each subtree of its shards, as in ``plan.tree``."""
        return tuple(map(roots, self.by_rank))

    @property
    def most_roots(self) -> int:
        """The largest number of subtrees that a rank has, all of which it sends."""
        return max(map(len, self.roots))

    def owner(self, shard: int) -> int:
        """Returns the rank that has a shard."""
        return bisect_right(self.bounds, shard) - 1

    def num_active(self, num_filled: int) -> int:
        """Returns the number of ranks with samples if the first ``num_filled`` shards have some:
        the ranks below it have."""
        return bisect_left(self.bounds, num_filled, hi=self.world_size)


@functools.lru_cache(maxsize=256)
def blocks_of(sizes: tuple[int, ...]) -> Blocks:
    """Returns blocks of these sizes, by rank: the same object, as long as it is cached."""
    return Blocks(tuple(itertools.accumulate(sizes, initial=0)))


@functools.lru_cache(maxsize=256)
def even_blocks(world_size: int, num_shards: int) -> Blocks:
    """Returns blocks as equal as possible: ``block`` of every rank."""
    return blocks_of(tuple(len(block(rank, world_size, num_shards)) for rank in range(world_size)))
