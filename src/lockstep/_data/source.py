"""The interface of a source of global batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from lockstep._data.torch_loader import length_of
from lockstep._plan.shards import StepPlan

StepData = tuple[StepPlan, list[Any]]
"""A step's plan, and the samples of each of this process's micro-batches."""


class Source(Protocol):
    """A source of one process's part of each global batch, in order."""

    reads_all: bool
    """Whether each rank reads complete global batches and keeps a part of each."""
    plans_in_worker: bool = False
    """Whether a loader worker plans the steps of a pass, and so must know the blocks of all steps
    at its beginning."""

    def steps(self, first_step: int, epoch: int, skip: int = 0, *, compared: bool = False) -> Iterator[StepData]:
        """Yields the steps of one pass, numbered from ``first_step``, without the first ``skip``,
        which were taken before the run was interrupted. If there are other ranks, the first step
        has a digest of its global batch (of its indices, if samples have them), for a comparison.
        ``compared``: whether the digest includes the data of the first shard."""

    @property
    def is_told(self) -> bool:
        """Whether the loader must call ``taken`` and ``ended``. Otherwise they do nothing."""
        return False

    def taken(self, step: int) -> None:
        """Notes that the loop has taken a step, or requested it and received an error. Later steps
        may have been requested, too."""
        return

    def ended(self) -> None:
        """Notes that the loop has requested a step after the last one of the pass."""
        return

    @property
    def held(self) -> set[int]:
        """The ids of the objects whose state is in ``state``, and so in checkpoints."""
        return set()

    def compared(self) -> str | None:
        """Returns a digest of the samplers' memory, which must be the same on every rank, for any
        numbers of workers and ranks; None: no memory is known."""
        return None

    def state(self, step: int | None) -> Any:
        """Returns the state from which to resume after ``step``, which must be the last completed
        step of the current pass; None: between two passes. A tree of plain values and tensors, the
        same on every rank."""

    def load_state(self, state: Any) -> None:
        """Resumes from a state with the next ``steps``."""

    def num_steps(self) -> int:
        """Returns the number of steps in one pass. TypeError if unknown."""

    def describe(self) -> list[str]:
        """Returns lines that must be the same on every rank."""

    def describe_samples(self) -> list[str]:
        """Returns lines that must be the same in every launch. (Ranks compare their first batches
        instead.)"""
        return []


def lengths(*named: tuple[str, object]) -> list[str]:
    """Returns lines for ``Source.describe``: the length of each of these collections."""
    known = [(name, length_of(collection)) for name, collection in named]
    return [f"{name} of {'unknown length' if length is None else f'length {length}'}" for name, length in known]
