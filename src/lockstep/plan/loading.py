"""How a DataLoader fetches its batches, on which no answer depends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from lockstep.base.shapes import Count

USUAL_PREFETCH = 2
"""PyTorch's own default for DataLoaders with workers."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Settings of one DataLoader. None: as the script has it."""

    workers: Count | None = None
    """Loader workers per process; 0: batches are fetched in the training process."""
    prefetch: Annotated[int, lambda number: number >= 1] | None = None
    """Batches that each worker fetches ahead (``prefetch_factor``)."""
    pin: bool | None = None
    """Whether batches are put into pinned memory, from which copies to a GPU do not hold up the training process."""

    def __str__(self) -> str:
        words = ["the script's workers" if self.workers is None else _workers(self.workers)]
        if self.workers != 0 and self.prefetch not in (None, USUAL_PREFETCH):
            words.append(f"each {self.prefetch} batches ahead")
        if self.pin:
            words.append("pinned memory")
        return ", ".join(words)


def _workers(number: int) -> str:
    return "no workers" if number == 0 else "1 worker" if number == 1 else f"{number} workers"
