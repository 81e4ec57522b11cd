"""What the script changes in a data set of which loader workers have copies.

Workers get their copies when they start: with each pass, or, if they are persistent, once. A change that comes later reaches no
sample, as in plain PyTorch, but without workers it reaches the next. So the result would depend on ``num_workers``. In steps
1, 2, 4, 8, ... the data set is compared with what it was then.
"""

from __future__ import annotations

import math
from typing import Any

from torch.utils.data import IterableDataset

from lockstep.base.stopping import say
from lockstep.data.changed_samples import Snapshot
from lockstep.data.torch_loader import is_torch_loader
from lockstep.plan.powers_of_two import PowersOfTwo


class WorkerCopies:
    """Looks at a loader's data set, and warns once.

    Args:
        batches: the script's loader.
        speaks: whether to look at all: on one rank.
    """

    def __init__(self, batches: Any, *, speaks: bool) -> None:
        self._batches = batches
        self._dataset = getattr(batches, "dataset", None)
        self._looks = PowersOfTwo()
        self._before: tuple[int, Snapshot] | None = None
        """A step, and what the data set was in it."""
        # (A stream is read in one worker, whose copy is the one that counts.)
        has_copies = is_torch_loader(batches) and batches.num_workers > 0 and not isinstance(self._dataset, IterableDataset)
        self.next: float = 0 if speaks and has_copies else math.inf
        """The first step for which there is something to do."""

    def look(self, step: int) -> None:
        """Compare, and look again: as a step begins."""
        self._compare(step)
        if self._looks.take(step) and not math.isinf(self.next):
            self._before = step, Snapshot([self._dataset])
        self.next = max(self._looks.next, step + 1) if not math.isinf(self.next) else math.inf

    def end_pass(self, step: int) -> None:
        """The pass has ended with this step. The next has new copies, unless its workers are the same."""
        self._compare(step)
        if not self._batches.persistent_workers or hasattr(self._dataset, "set_epoch"):  # which is called in each
            self._before = None

    def _compare(self, step: int) -> None:
        if self._before is None:
            return
        since, before = self._before
        changed = next((held for held in before.changed() if not _is_shared(held.value)), None)
        if changed is None:
            return
        self._before, self.next = None, math.inf
        path = changed.path + before.place(changed)
        name = "dataset" if not path else f"dataset{path}" if path.startswith((".", "[")) else f"dataset.{path}"
        say(
            f"WARNING: {name} ({type(self._dataset).__name__}) was changed between steps {since} and {step}, while loader "
            "workers have copies of the data set from before: the change reaches no sample "
            + ("" if self._batches.persistent_workers else "before the next pass ")
            + "(with num_workers=0 it reaches the next one), so the result depends on num_workers. Change data between passes"
            + (", without persistent_workers" if self._batches.persistent_workers else "")
            + "; by a method set_epoch(epoch) of the data set, which is called in each worker; or where the loop has the batch."
        )


def _is_shared(value: Any) -> bool:
    """Whether the memory of a tensor is the workers', too."""
    return bool(getattr(value, "is_shared", bool)())
