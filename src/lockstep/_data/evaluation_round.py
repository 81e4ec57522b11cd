"""The batches of an evaluation that the ranks run at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from lockstep._base.errors import DataError
from lockstep._data.batches import count_samples
from lockstep._data.evaluation_source import AssignedBatch
from lockstep._data.shared import Shared


class Round:
    """The batches that the ranks run at the same time: one for each rank, or a single one."""

    __slots__ = (
        "_fetch",
        "mine",
        "num_gathered",
        "num_passes",
        "num_requested",
        "num_samples",
        "number",
        "samples",
        "shared",
    )

    def __init__(self, batches: Sequence[AssignedBatch]) -> None:
        self.number: int | None = None
        """The number of this rank's batch; None: it has none."""
        self.num_samples: int | None = None
        self._fetch: Callable[[], Any] | None = None
        self.samples: Sequence[Any] = ()
        """This rank's batch, once it is fetched."""
        self.num_passes = 0
        """The number of passes that were run."""
        self.num_requested = 0
        """The number of passes that the script has requested. The same on every rank, unlike
        ``num_passes``: in ``zip(a.shards, b.shards)`` a rank without a batch in a does not run
        b."""
        self.mine: list[Shared] = []
        """The values that this rank has shared since the last gathering."""
        self.shared: list[Shared] = []
        """The values that all ranks have shared in the first ``num_gathered`` passes."""
        self.num_gathered = 0
        for number, num_samples, fetch in batches:
            if fetch is not None:
                self.number, self.num_samples, self._fetch = number, num_samples, fetch

    def fetch(self) -> None:
        """Fetches this rank's batch, if it has one."""
        if self._fetch is None:
            return
        self.samples = (self._fetch(),)
        if self.num_samples is None:
            with contextlib.suppress(DataError):
                self.num_samples = count_samples(self.samples[0])
