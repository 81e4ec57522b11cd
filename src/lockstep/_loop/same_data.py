"""Whether all ranks have read the same data."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NoReturn

from lockstep._base.errors import DataError
from lockstep._plan.shards import StepPlan
from lockstep._world.comm.agreement import compare_ranks
from lockstep._world.comm.collectives import Collectives
from lockstep._world.machine.sizes import name_ranks

_SAME_DATA = (
    "Every rank must read the same data, of which lockstep gives it its shards: do not split a dataset or stream by rank, and "
    "create, split (random_split) and shuffle it after join(), or with a generator of a fixed seed"
)


class SameData:
    """Compares the sizes of global batches in each phase, and the first batches of each pass.
    Implements ``loop.exchange.RowPart``.

    Args:
        collectives: over all ranks.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._first: list[str] = []
        """The descriptions of first batches that the ranks compare with the next exchange."""
        self._step = 0

    def compare(self, description: str) -> None:
        """Compares descriptions of the first samples that each rank has read. Every rank must call
        it.

        Raises:
            MismatchError: the descriptions differ.
        """
        remedy = f"{_SAME_DATA}. A sample must depend only on its index and on random numbers, not on the time or the rank"
        compare_ranks("data", [description], self._collectives, remedy)

    def note(self, description: str) -> None:
        """Adds a description of the first samples of a pass to the next exchange, which compares
        them without a further message. Every rank must call it."""
        self._first.append(description)

    def report(self, plan: StepPlan) -> list[float]:
        """Returns the number of samples in the global batch, and a number that is the same on all
        ranks if they have begun their passes with the same batches."""
        self._step = plan.number
        return [float(plan.num_samples), float(zlib.crc32("\n".join(self._first).encode())) if self._first else 0.0]

    def receive(self, rows: Sequence[Sequence[float]]) -> None:
        """Takes the numbers of all ranks.

        Raises:
            DataError: they differ.
        """
        samples = [int(row[0]) for row in rows]
        if len(set(samples)) > 1:
            raise DataError(
                f"step {self._step}: the ranks have global batches of different sizes: {', '.join(map(str, samples))} samples "
                f"on ranks 0 to {len(samples) - 1}, so samples would be lost or used twice. {_SAME_DATA}.",
                code="different-batch-sizes",
            )
        if len({row[1] for row in rows}) > 1:
            self._refuse_first()
        self._first = []

    def _refuse_first(self) -> NoReturn:
        """Raises the error for passes that have begun with different batches. Every rank must call
        it."""
        mine = "; ".join(self._first) or "no new pass"
        everyone = self._collectives.all_gather_plain(mine)
        ranks: defaultdict[str, list[int]] = defaultdict(list)
        for rank, description in enumerate(everyone):
            ranks[description].append(rank)
        found = ", but ".join(f"{description} on {name_ranks(which)}" for description, which in ranks.items())
        raise DataError(
            f"the ranks began a pass with different batches: {found}, so samples would be lost or used twice. {_SAME_DATA}. A "
            "sampler may keep state only in its generators and attributes.",
            code="different-first-batches",
        )
