"""How a global batch is cut into shards, and which process owns which.

A global batch of ``n`` samples is cut into ``V`` shards as evenly as can be: their sizes differ by at most one, the
larger ones come first, and the last ones are empty only if ``n < V``. Neither the cut nor a shard's weight knows how
many processes there are. Process ``r`` of ``W`` owns the contiguous block of shards ``[r*V//W, (r+1)*V//W)``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.errors import ConfigError


def block(rank: int, world_size: int, num_shards: int) -> range:
    """The shards that a process owns. Blocks are contiguous, in rank order, and at least one shard long.

    Raises:
        ConfigError: there are more processes than shards.
    """
    if world_size > num_shards:
        raise ConfigError(
            f"{world_size} processes for {num_shards} shard{'s' if num_shards > 1 else ''}: a process would have nothing to "
            f"do. Start at most {num_shards} processes, or a new run with shards={world_size} or more."
        )
    return range(rank * num_shards // world_size, (rank + 1) * num_shards // world_size)


def shard_slice(shard: int, num_samples: int, num_shards: int) -> slice:
    """Which samples of a global batch of ``num_samples`` a shard holds."""
    least, larger = divmod(num_samples, num_shards)
    start = shard * least + min(shard, larger)
    return slice(start, start + least + (shard < larger))


def num_active_ranks(num_samples: int, world_size: int, num_shards: int) -> int:
    """How many processes have a sample of a global batch: the ranks below this number. (Shards fill up in order.)"""
    # Rank r begins at shard r*V//W, which is below f where r*V < f*W.
    num_filled = min(num_samples, num_shards)
    return -(-num_filled * world_size // num_shards)


@dataclass(slots=True)
class MicroStep:
    """One shard's turn in one step, on the process that owns it. Made only for shards that are not empty.

    With ``accumulate=k`` a step has ``k`` global batches, its parts, and a shard has a turn for each of them, one after
    another. (Nothing changes a MicroStep once it is dealt. It is not frozen because one is made every micro-step, and a
    frozen one takes four times as long.)
    """

    step: int
    """Number of the step in the run, from 1."""
    shard: int
    part: int
    """Which of the step's global batches this turn is about, from 0."""
    num_samples: int
    """Samples in this turn."""
    batch_samples: int
    """Samples in the whole global batch."""
    step_samples: int
    """Samples in all global batches of the step."""
    index: int
    """0 for the first of this process's turns in this step."""
    begins_shard: bool
    """Whether it is its shard's first one in this step."""
    ends_shard: bool
    """Whether it is its shard's last one in this step."""
    is_last: bool
    """Whether it is this process's last one in this step."""
    num_active_ranks: int
    """Ranks below this number take part in this step with samples of their own; the others follow."""
    num_filled_shards: int
    """Shards below this number have samples in this step."""
    samples: Sequence[Any] = ()
    """Which samples they are: the sampler's indices, or the places in the pass over a stream or over ready batches."""

    @property
    def fraction(self) -> float:
        """The turn's weight by sample count, as its part of the step: these sum to one over all turns of all shards."""
        return self.num_samples / self.step_samples


def micro_steps(step: int, sizes: tuple[int, ...], rank: int, world_size: int, num_shards: int) -> list[MicroStep]:
    """A process's turns in a step: none if all of its shards are empty.

    Args:
        step: its number.
        sizes: the number of samples of each of its global batches (one, unless gradients are accumulated).
        rank: of the process.
        world_size: number of processes.
        num_shards: V.
    """
    return [MicroStep(step, *turn) for turn in _turns(sizes, rank, world_size, num_shards)]


@functools.lru_cache(maxsize=256)  # nearly all batches of a run have one size
def _turns(
    sizes: tuple[int, ...], rank: int, world_size: int, num_shards: int
) -> tuple[tuple[int, int, int, int, int, int, bool, bool, bool, int, int], ...]:
    """The fields of each MicroStep, after ``step``. A shard's turns come together, so that it has one sum of its own."""
    active = num_active_ranks(max(sizes), world_size, num_shards)
    filled = min(max(sizes), num_shards)
    owned = [
        (shard, [part for part, size in enumerate(sizes) if shard < size])
        for shard in block(rank, world_size, num_shards)
        if shard < filled
    ]
    places = [(shard, part, part == parts[0], part == parts[-1]) for shard, parts in owned for part in parts]
    turns = []
    for index, (shard, part, begins, ends) in enumerate(places):
        cut = shard_slice(shard, sizes[part], num_shards)
        number, is_last = cut.stop - cut.start, index == len(places) - 1
        turns.append((shard, part, number, sizes[part], sum(sizes), index, begins, ends, is_last, active, filled))
    return tuple(turns)


def deal(num_items: int, rank: int, world_size: int) -> range:
    """Which of ``num_items`` a process gets when they are dealt out in turn (evaluation batches)."""
    return range(rank, num_items, world_size)
