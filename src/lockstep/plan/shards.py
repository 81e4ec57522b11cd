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
    """One shard's part in a phase, on the process that owns it. Made only for shards that are not empty.

    With ``accumulate=k`` a step has ``k`` global batches, its parts, and a shard runs once for each of them, one after
    another. (Nothing changes a MicroStep once it is planned. It is not frozen because a frozen one takes four times as long
    to make.)
    """

    step: int
    """Number of the step, as its loader counts them."""
    shard: int
    part: int
    """Which of the step's global batches this is about, from 0."""
    num_samples: int
    """Samples in this micro-step."""
    batch_samples: int
    """Samples in the whole global batch."""
    step_samples: int
    """Samples in all global batches of the step."""
    index: int
    """0 for the first of this process's micro-steps in this step."""
    begins_shard: bool
    """Whether it is its shard's first one in this step."""
    ends_shard: bool
    """Whether it is its shard's last one in this step."""
    is_last: bool
    """Whether it is this process's last one in this step."""
    rows: slice
    """Which samples of its global batch they are."""
    samples: Sequence[Any] = ()
    """Which samples they are: the sampler's indices, or the places in the pass over a stream or over ready batches."""

    @property
    def fraction(self) -> float:
        """Its weight by sample count, as its part of the step: these sum to one over all micro-steps of all shards."""
        return self.num_samples / self.step_samples


@dataclass(slots=True)
class StepPlan:
    """What one process has to do in each phase of a step."""

    number: int
    """Of the step, as its loader counts them."""
    sizes: tuple[int, ...]
    """Samples of each of its global batches (one, unless gradients are accumulated). The same on every rank."""
    micro_steps: list[MicroStep]
    """In the order in which they run; none if all of this process's shards are empty."""
    num_active_ranks: int
    """Ranks below this number have samples."""
    digest: str = ""
    """Of samples that every rank has read, where the ranks are to compare them: the same on every rank."""

    @property
    def num_samples(self) -> int:
        """Samples of the step, over all ranks."""
        return sum(self.sizes)


def plan_step(number: int, sizes: tuple[int, ...], rank: int, world_size: int, num_shards: int) -> StepPlan:
    """A process's part of a step whose global batches have these numbers of samples."""
    of_steps, active = _plan(sizes, rank, world_size, num_shards)
    return StepPlan(number, sizes, [MicroStep(number, *fields) for fields in of_steps], active)


@functools.lru_cache(maxsize=256)  # nearly all batches of a run have one size
def _plan(sizes: tuple[int, ...], rank: int, world_size: int, num_shards: int) -> tuple[tuple[tuple[Any, ...], ...], int]:
    """The fields of each MicroStep, after ``step``, and how many ranks have samples. A shard's parts come together, so that
    it has one sum of its own."""
    filled = min(max(sizes), num_shards)
    owned = [
        (shard, [part for part, size in enumerate(sizes) if shard < size])
        for shard in block(rank, world_size, num_shards)
        if shard < filled
    ]
    positions = [(shard, part, part == parts[0], part == parts[-1]) for shard, parts in owned for part in parts]
    found = []
    for index, (shard, part, begins, ends) in enumerate(positions):
        rows = shard_slice(shard, sizes[part], num_shards)
        number, is_last = rows.stop - rows.start, index == len(positions) - 1
        found.append((shard, part, number, sizes[part], sum(sizes), index, begins, ends, is_last, rows))
    return tuple(found), num_active_ranks(max(sizes), world_size, num_shards)


def deal(num_items: int, rank: int, world_size: int) -> range:
    """Which of ``num_items`` a process gets when they are dealt out in turn (evaluation batches)."""
    return range(rank, num_items, world_size)
