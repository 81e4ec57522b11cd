"""Buffers that are no statistics (counters, tables, queues, minima), of which combining the shards'
changes loses a part.

A look sums up how one shard has changed a buffer (``look_at``). ``find_lost_changes`` finds from
the looks of all shards whether combining the changes has lost something. Pure. Nothing is lost of
running statistics, where every shard changes all elements and the weighted mean is right, nor of
what all shards change in the same way: a count of steps, a flag, the vectors of a spectral norm."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep._base.digest import digest


class Trait(enum.Enum):
    """What a shard's change of a buffer looks like."""

    ZERO = "the shard did not change it: 0 or infinite, which a statistic may be, too"
    LEFT = "the shard did not change it"
    INTEGER = "integers or truth values"
    SAMPLES = "one number, which grew by a multiple of the shard's samples"
    PARTS = "most of the elements that are not 0 stayed"
    SHIFTED = "rows moved on by the number of samples"
    VOTES = "all elements moved by one amount, some up, some down"
    OTHER = "as a statistic's"


@dataclass(frozen=True, slots=True)
class Look:
    """How one shard has changed a buffer. Hashable, and small enough to be sent."""

    group: int
    """The number of the module."""
    slot: int
    """The number of its buffer."""
    trait: Trait
    digest: str
    """The digest of the buffer's new values, if they are new."""

    def __str__(self) -> str:
        return f"{self.group} {self.slot} {self.trait.name} {self.digest}"

    @classmethod
    def parse(cls, text: str) -> Look:
        """Returns the look with this ``str()``, as which it is sent."""
        group, slot, trait, value = text.split(" ")
        return cls(int(group), int(slot), Trait[trait], value)


def look_at(group: int, slot: int, start: Tensor, after: Tensor, num_samples: int) -> Look:
    """Looks at a buffer, of one shape and dtype, before and after a shard of ``num_samples``
    samples (0: not known). Waits for a GPU."""
    start, after = start.detach(), after.detach()
    if torch.equal(start, after):
        is_held = bool((start != 0).logical_and(start.isfinite()).any())
        return Look(group, slot, Trait.LEFT if is_held else Trait.ZERO, "")
    return Look(group, slot, _trait(start, after, num_samples), digest(after))


def _trait(start: Tensor, after: Tensor, num_samples: int) -> Trait:
    if start.is_complex():
        return Trait.OTHER
    if start.numel() == 1 and num_samples > 1 and start.dtype != torch.bool:
        change = after.item() - start.item()
        if change >= num_samples and change % num_samples == 0:
            return Trait.SAMPLES
    if not start.is_floating_point():
        return Trait.INTEGER
    held = (start != 0) & start.isfinite()
    num_held = int(held.sum())
    if num_held and 2 * int((held & (after == start)).sum()) >= num_held:
        return Trait.PARTS
    if start.ndim and 0 < num_samples < len(start) and _is_shifted(start, after, num_samples):
        return Trait.SHIFTED
    moved = (after.double() - start.double()).flatten()
    moved = moved[moved != 0]
    sizes = moved.abs()
    if len(moved) > 1 and bool((moved > 0).any() & (moved < 0).any()) and float(sizes.min()) > 0.999 * float(sizes.max()):
        return Trait.VOTES
    return Trait.OTHER


def _is_shifted(start: Tensor, after: Tensor, by: int) -> bool:
    if torch.equal(after[by:], start[:-by]) or torch.equal(after[:-by], start[by:]):
        return 2 * int(start.count_nonzero()) > start.numel()  # zeros may be anything moved on
    return False


_BY_HAND = (
    "Collect the new values inside batch.shards, and write them outside, once a step: "
    "`rows, _ = team.all_gather_rows(found)`"
)


def find_lost_changes(looks: Iterable[Look], *, is_averaged: bool) -> str | None:
    """Returns what combining the shards' changes of one buffer lost, and what to write instead;
    None: nothing, as far as they show.

    Args:
        looks: the looks of all shards, without duplicates.
        is_averaged: whether the buffer is floating, so that changes are averaged. Of others the
            first shard's value counts.
    """
    looks = list(looks)
    traits = {look.trait for look in looks}
    differ = len(looks) > 1
    done = "the shards' values were averaged" if is_averaged else "only the first shard's value was kept"
    if traits == {Trait.SAMPLES} or (differ and Trait.SAMPLES in traits):
        return (
            f"grows by the samples of each shard, but {done}, so it counts too few. Count once a step, outside of "
            "batch.shards: `model.seen += batch.num_samples`, or `batch.add(n=..., reduction='sum')` inside and `batch['n']` "
            "outside"
        )
    if not differ:
        return None
    if Trait.INTEGER in traits:
        return f"got different values from different shards, but {done}. {_BY_HAND}"
    if Trait.VOTES in traits:
        return (
            f"moved up or down by a fixed amount, but {done}, where one device would decide on the global batch. Add up the "
            "criterion inside, `batch.add(load=..., reduction='sum')`, and move it outside of batch.shards, by `batch['load']`"
        )
    if traits & {Trait.PARTS, Trait.LEFT, Trait.SHIFTED}:
        return (
            f"was written in part, or by some shards only (as a table, queue or minimum is), but {done}, so the values that "
            f"one shard wrote count only by its share of the samples. {_BY_HAND}"
        )
    return None
