"""How a global batch is cut into shards, and which process owns which.

A global batch of ``n`` samples is cut into ``V`` shards as evenly as can be: their sizes differ by at most one, the
larger ones come first, and the last ones are empty only if ``n < V``. Neither the cut nor a shard's weight knows how
many processes there are. Process ``r`` of ``W`` owns the contiguous block of shards ``[r*V//W, (r+1)*V//W)``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lockstep.errors import ConfigError


def block(rank: int, world_size: int, num_shards: int) -> range:
    """The shards that a process owns. Blocks are contiguous, in rank order, and at least one shard long.

    Raises:
        ConfigError: there are more processes than shards.
    """
    if world_size > num_shards:
        raise ConfigError(
            f"{world_size} processes for {num_shards} shards: a process would have nothing to do. "
            f"Start at most {num_shards} processes, or a new run with shards={world_size} or more."
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

    (Nothing changes one. It is not frozen because one is made every micro-step, and a frozen one takes four times as long.)
    """

    step: int
    """Number of the step in the run, from 1."""
    shard: int
    num_samples: int
    """Samples in this shard."""
    step_samples: int
    """Samples in the whole global batch."""
    index: int
    """0 for the first of this process's shards in this step."""
    is_last: bool
    """Whether it is this process's last one in this step."""
    num_active_ranks: int
    """Ranks below this number take part in this step with samples of their own; the others follow."""

    @property
    def fraction(self) -> float:
        """The shard's weight by sample count, as its part of the step: these sum to one over all shards."""
        return self.num_samples / self.step_samples


def micro_steps(step: int, num_samples: int, rank: int, world_size: int, num_shards: int) -> list[MicroStep]:
    """A process's turns in a step whose global batch has ``num_samples``: none if all of its shards are empty."""
    return [MicroStep(step, *turn) for turn in _turns(num_samples, rank, world_size, num_shards)]


@functools.lru_cache(maxsize=256)  # nearly all batches of a run have one size
def _turns(
    num_samples: int, rank: int, world_size: int, num_shards: int
) -> tuple[tuple[int, int, int, int, bool, int], ...]:
    """The fields of each MicroStep, after ``step``."""
    owned = [shard for shard in block(rank, world_size, num_shards) if shard < num_samples]
    active = num_active_ranks(num_samples, world_size, num_shards)
    turns = []
    for index, shard in enumerate(owned):
        part = shard_slice(shard, num_samples, num_shards)
        turns.append((shard, part.stop - part.start, num_samples, index, index == len(owned) - 1, active))
    return tuple(turns)


def deal(num_items: int, rank: int, world_size: int) -> range:
    """Which of ``num_items`` a process gets when they are dealt out in turn (evaluation batches)."""
    return range(rank, num_items, world_size)
