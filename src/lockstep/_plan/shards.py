"""Splitting a global batch into shards, and assigning shards to processes.

A global batch is one batch of the loader, over all processes. A step has one global batch, or with
``accumulate=k`` as many as k: its parts. A micro-batch is a shard of one part.

A global batch of ``n`` samples is split into ``V`` shards as evenly as possible: their sizes differ
by at most one, larger ones come first, and the last ones are empty only if ``n < V``. Neither the
split nor a shard's weight depends on the number of processes. Each process has a block of shards
(``plan.blocks``).

11 samples in V = 4 shards, on two processes::

    samples   0 1 2 | 3 4 5 | 6 7 8 | 9 10
    shard       0       1       2      3        weights 3/11, 3/11, 3/11, 2/11
    process   0 0 0   0 0 0   1 1 1   1 1

The first ``n mod V`` shards have one sample more. Samples stay in order, so that the samples of a
process are one slice of the global batch."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep._plan.blocks import Blocks


def shard_slice(shard: int, num_samples: int, num_shards: int) -> slice:
    """Returns the samples of a shard within a global batch of ``num_samples``."""
    smaller_size, num_larger = divmod(num_samples, num_shards)
    start = shard * smaller_size + min(shard, num_larger)
    return slice(start, start + smaller_size + (shard < num_larger))


def num_filled(sizes: Sequence[int], num_shards: int) -> int:
    """Returns the number of shards that have samples in a step whose global batches have ``sizes``
    samples."""
    return min(max(sizes), num_shards)


@dataclass(slots=True)
class MicroBatch:
    """One run of a shard within a phase, on the process that owns it. Exists only for shards that
    are not empty.

    With ``accumulate=k`` a shard runs once for each part of the step, consecutively. (Treated as
    immutable, but for ``samples``; a frozen dataclass takes four times as long to create.)"""

    step: int
    """Number of the step, as counted by its loader."""
    shard: int
    part: int
    """Index of the global batch within the step, from 0."""
    num_samples: int
    """Number of samples in this micro-batch."""
    batch_samples: int
    """Number of samples in its global batch."""
    step_samples: int
    """Number of samples in all global batches of the step."""
    fraction: float
    """The fraction of the step's samples in this micro-batch. The fractions of all micro-batches of
    all shards sum to one."""
    index: int
    """Index of the micro-batch within this process's phase, from 0."""
    begins_shard: bool
    """Whether it is the first of its shard in a phase."""
    ends_shard: bool
    """Whether it is the last of its shard in a phase."""
    is_last: bool
    """Whether it is the last of this process in a phase."""
    rows: slice
    """The slice of its samples in the global batch."""
    samples: Sequence[Any] = ()
    """The identity of its samples: the sampler's indices, or positions in the pass over an iterable
    dataset or ready batches."""


_behind_step = operator.attrgetter(*(field.name for field in dataclasses.fields(MicroBatch)[1:]))
"""Returns all fields of a MicroBatch but ``step``, in their order."""


@dataclass(slots=True)
class StepPlan:
    """One process's micro-batches in each phase of a step."""

    number: int
    """Number of the step, as counted by its loader."""
    sizes: tuple[int, ...]
    """Number of samples in each of its global batches (one, unless ``accumulate`` is used). The
    same on every rank."""
    micro_batches: list[MicroBatch]
    """The micro-batches in the order in which they run; empty if all of this process's shards
    are."""
    num_active_ranks: int
    """Ranks below this number have samples."""
    num_samples: int
    """Number of samples in the step, over all ranks."""
    blocks: Blocks
    """The shards of all ranks in this step. The same on every rank."""
    digest: str = ""
    """Digest of the samples read, for steps in which the ranks compare them: the same on every
    rank."""


def plan_step(number: int, sizes: tuple[int, ...], rank: int, blocks: Blocks) -> StepPlan:
    """Returns a process's share of a step whose global batches have ``sizes`` samples."""
    fields, num_active, num_samples = _plan(sizes, rank, blocks)
    return StepPlan(number, sizes, [MicroBatch(number, *each) for each in fields], num_active, num_samples, blocks)


# Nearly all batches of a run have the same size, so all but the step numbers is computed once.
@functools.lru_cache(maxsize=256)
def _plan(sizes: tuple[int, ...], rank: int, blocks: Blocks) -> tuple[list[tuple[Any, ...]], int, int]:
    """Returns the fields of each MicroBatch behind ``step``, in their order: with names a
    MicroBatch takes twice as long to create. And the numbers of ranks with samples, and of samples
    in the step. A shard's parts are consecutive, so that their sum is complete before the next
    shard."""
    num_shards, step_samples = blocks.num_shards, sum(sizes)
    filled = num_filled(sizes, num_shards)
    # By shard first and by part second: a leaf of the tree is a whole shard, with the parts of all
    # accumulated batches. By part first, a leaf for each shard would have to be kept over all
    # parts.
    owned = [
        (shard, [part for part, size in enumerate(sizes) if shard < size])
        for shard in blocks.by_rank[rank]
        if shard < filled
    ]
    positions = [(shard, part, part == parts[0], part == parts[-1]) for shard, parts in owned for part in parts]
    fields: list[tuple[Any, ...]] = []
    for index, (shard, part, begins_shard, ends_shard) in enumerate(positions):
        rows = shard_slice(shard, sizes[part], num_shards)
        num_samples = rows.stop - rows.start
        micro = MicroBatch(
            step=0,
            shard=shard,
            part=part,
            num_samples=num_samples,
            batch_samples=sizes[part],
            step_samples=step_samples,
            fraction=num_samples / step_samples,
            index=index,
            begins_shard=begins_shard,
            ends_shard=ends_shard,
            is_last=index == len(positions) - 1,
            rows=rows,
        )
        fields.append(_behind_step(micro))
    return fields, blocks.num_active(filled), step_samples


def deal(num_items: int, rank: int, world_size: int) -> range:
    """Returns the items of a process when ``num_items`` (evaluation batches) are assigned to
    processes in turn."""
    return range(rank, num_items, world_size)
