"""What a source of global batches is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from lockstep._data.torch_loader import length_of
from lockstep._plan.shards import StepPlan

StepData = tuple[StepPlan, list[Any]]
"""A step's plan, and the samples of each of this process's micro-batches."""


class Source(Protocol):
    """Yields one process's part of each global batch, in order."""

    reads_all: bool
    """Whether each rank reads whole global batches, of which it keeps its part."""
    plans_in_worker: bool = False
    """Whether a loader worker plans the steps of a pass, and so must know the shards of all of them
    when it begins."""

    def steps(self, first_step: int, epoch: int, skip: int = 0, *, compared: bool = False) -> Iterator[StepData]:
        """The steps of one pass, numbered from ``first_step``, without the first ``skip``, which
        were taken before the run was interrupted. The first one yielded has a digest of its global
        batch, if there are other ranks to compare it with: of the indices, where samples have them.
        ``compared``: of the first shard's data, too."""

    @property
    def is_told(self) -> bool:
        """Whether ``taken`` and ``ended`` are to be called: else they do nothing."""
        return False

    def taken(self, step: int) -> None:
        """The loop has taken a step, or has asked for it and met an error. Steps behind it may have
        been asked for, too."""
        return

    def ended(self) -> None:
        """The loop has asked for a step behind the last one of the pass."""
        return

    @property
    def held(self) -> set[int]:
        """The ids of the objects whose state ``state`` gives, so that it is in checkpoints."""
        return set()

    def compared(self) -> str | None:
        """A digest of what its samplers remember, which must be the same on every rank, for any
        numbers of workers and ranks; None: nothing that is known."""
        return None

    def state(self, step: int | None) -> Any:
        """The state from which to resume after ``step``, which must be the last completed step of
        the current pass; None: between two passes. A tree of plain values and tensors, the same on
        every rank."""

    def load_state(self, state: Any) -> None:
        """Resume from a state with the next ``steps``."""

    def num_steps(self) -> int:
        """Steps in one pass. TypeError if unknown."""

    def describe(self) -> list[str]:
        """Lines that must be the same on every rank."""

    def describe_samples(self) -> list[str]:
        """Lines that must be the same in every launch. (Among ranks, the first batches are
        compared.)"""
        return []


def lengths(*named: tuple[str, object]) -> list[str]:
    """Lines for ``Source.describe``: how long each of these collections is."""
    known = [(name, length_of(collection)) for name, collection in named]
    return [f"{name} of {'unknown length' if length is None else f'length {length}'}" for name, length in known]
