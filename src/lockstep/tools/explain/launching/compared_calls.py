"""The collectives that this machine's workers have called, compared while they run (``call_comparison``)."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.launch.failures import Failure
from lockstep.tools.explain.call_log import CallReader, log_path, offer_memory

if TYPE_CHECKING:
    from lockstep.tools.explain.call_comparison import CallComparison


class ComparedCalls:
    """Follows the logs of these ranks. May be used in any thread.

    Args:
        private_dir: of the launch.
        ranks: of this machine.
    """

    def __init__(self, private_dir: Path, ranks: Sequence[int]) -> None:
        self._dir, self._ranks = private_dir, ranks
        self._comparison: CallComparison | None = None
        self._readers: dict[int, CallReader] = {}
        self._lock = threading.Lock()
        self._memory: list[int] = []
        if len(ranks) > 1:
            self._memory = offer_memory(private_dir, ranks)

    def close(self) -> None:
        """Give up the logs. No look may follow."""
        with self._lock:
            while self._memory:
                os.close(self._memory.pop())

    def look(self, *, is_over: bool, alike_suffice: bool = False) -> Failure | None:
        """The failure of ranks whose calls of a collective do not match; None: there are none.

        Args:
            is_over: whether the ranks have ended; else only of those that have gone on since, so that it is certain that they
                do not wait.
            alike_suffice: whether it is also certain of calls of one kind.
        """
        if len(self._ranks) < 2:
            return None
        from lockstep.tools.explain.call_comparison import CallComparison  # only here: not while the processes start

        with self._lock:
            if self._comparison is None:
                self._comparison = CallComparison(self._ranks)
                self._readers = {rank: CallReader(log_path(self._dir, rank)) for rank in self._ranks}
            for rank, reader in self._readers.items():
                self._comparison.add(rank, reader.read())
            found = self._comparison.found(is_over=is_over, alike_suffice=alike_suffice)
        return None if found is None else _failure(*found)


def _failure(rank: int, where: str, report: str) -> Failure:
    """That of one of the ranks. ``where``: which collective it was, in words; ``report``: the ranks' calls."""
    message = f"collective mismatch: {where} was not the same call on all ranks"
    return Failure(rank=rank, kind="", message=message, is_of_all=True, waited=report, would_recur=True)
