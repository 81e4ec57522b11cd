"""The collectives that this machine's workers have called: compared while they run, and known after
they exit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._base.reports import MISMATCH, Report
from lockstep._tools.explain.call_ring import NotedCall, offer_rings, read_ring

_PARTS = 100.0
"""The least ratio of the time between two looks to the time of one: with many ranks looks are
rarer, and miss some calls."""


class ComparedCalls:
    """Reads the rings of these ranks. May be used in any thread.

    Args:
        private_dir: of the launch.
        ranks: the ranks of this machine. None has started yet.
        publish: prints and notes a report.
    """

    def __init__(self, private_dir: Path, ranks: Sequence[int], publish: Callable[[Report], None]) -> None:
        self._dir, self._ranks, self._publish = private_dir, ranks, publish
        self._memory = offer_rings(private_dir, ranks) if len(ranks) > 1 else []
        self._lock = threading.Lock()
        self._has_told = False
        self._next = 0.0
        """The time of the next look, as ``time.monotonic`` counts."""

    def close(self) -> None:
        """Give up the rings. No look may follow."""
        with self._lock:
            while self._memory:
                os.close(self._memory.pop())

    def look(self, *, is_over: bool) -> None:
        """Warn, once, of ranks that have called one collective in different ways: numbers may be
        wrong without any error.

        ``is_over``: whether the ranks have exited with status 0. If not, a difference is reported
        only once a rank has called another collective in that group: until then they may all wait
        in it, which is reported elsewhere.
        """
        from lockstep._tools.explain.mismatch import describe_call, first_difference, has_gone_on

        with self._lock:
            began = time.monotonic()
            if self._has_told or not self._memory or (began < self._next and not is_over):
                return
            called = self._read()
            first = first_difference(called)
            self._next = began + _PARTS * (time.monotonic() - began)
            if first is None or not (is_over or has_gone_on(called, first)):
                return
            self._has_told = True
        said = "\n".join(f"  {line}" for line in first.lines())
        self._publish(
            Report(
                kind=MISMATCH,
                text="ranks called the same collective in different ways, so its result is wrong even without an error.\n"
                f"{said}\n{first.remedy}",
                ranks=first.odd_ranks,
                cause=first.aspect,
                places={rank: call.at for rank, call in first.calls.items() if call.at},
                calls={rank: describe_call(call) for rank, call in first.calls.items()},
            )
        )

    def latest(self, records: Iterable[Mapping[str, Any]]) -> dict[int, list[NotedCall]]:
        """The latest calls of each rank: the noted ones, and from its black box the calls that only
        PyTorch's recorder knew.

        ``records``: the records of the black boxes.
        """
        from lockstep._tools.explain.mismatch import of_records

        boxes, called = of_records(records), {}
        with self._lock:
            noted = self._read()
        for rank in self._ranks:
            newest = {call.group: call.life for call in noted[rank]}
            mine = [call._replace(life=0) for call in noted[rank] if call.life == newest[call.group]]
            known = {(call.group, call.number) for call in mine}
            others = [call for call in boxes.get(rank, ()) if (call.group, call.number) not in known and not call.via]
            called[rank] = [*others, *mine]
        return called

    def _read(self) -> dict[int, list[NotedCall]]:
        return {rank: read_ring(self._dir, rank) for rank in self._ranks}
