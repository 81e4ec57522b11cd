"""Who waits for whom among this machine's workers, from their black boxes: said while they wait, and kept for their end.

The launcher says it, for it is no rank: it can speak where all of them hang in C code, it knows who is gone, and there is one
of it. Ranks that have joined a run say it themselves, as they do under other launchers, for of them it is known how long a step
takes. On several machines each launcher sees its own workers; who waits for one of another machine is not told here.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.stopping import say

_LOOK_S = 1.0
_FIRST_S = 5.0
"""Nobody has waited for too long before that, and the launcher has other things to do at its start."""
_SUSPENDED_S = 5.0
"""This process was stopped for a while, perhaps with the others: they are given time to report again."""


class Watching:
    """Looks now and then, in a thread of its own, until it is closed.

    Args:
        private_dir: of this start of the workers.
        world_size: of the launch.
    """

    def __init__(self, private_dir: str, world_size: int) -> None:
        self._dir = Path(private_dir)
        self._told = ""
        """What was said last."""
        self._waited: tuple[int, ...] = ()
        """The ranks that had waited for too long at the last look."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        if world_size > 1:
            threading.Thread(target=self._run, name="lockstep-watch", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def explain(self, echoes: Collection[int]) -> str:
        """Who waits for whom now; empty: nobody does, as far as can be seen.

        Args:
            echoes: ranks that have just failed, because they timed out: as if they still did.
        """
        text: str | None = None
        with contextlib.suppress(Exception):  # what it would say is lost; what has happened is told all the same
            text = self._who_waits(echoes, is_over=True)
        return text or self._told

    def last_seen(self, rank: int) -> str:
        """What a worker that is gone was last seen at; empty: that is not known."""
        with contextlib.suppress(Exception):
            from lockstep.explain.testimony import testimony

            return testimony(self._where(), rank)
        return ""

    def _where(self) -> Path:
        from lockstep.explain.rank_reports import run_joined

        return run_joined(self._dir) or self._dir

    def _run(self) -> None:
        self._closed.wait(_FIRST_S)
        looked_at = time.monotonic()
        while not self._closed.wait(_LOOK_S):
            now = time.monotonic()
            if now - looked_at > _SUSPENDED_S:
                self._waited = ()
                self._closed.wait(_SUSPENDED_S)
            looked_at = time.monotonic()
            with contextlib.suppress(Exception):  # nothing that goes wrong here may matter to the workers
                self._look()

    def _look(self) -> None:
        """Say it once for each wait. Who has waited for too long must have done so at the look before, too: those that were
        stopped, and go on, have not reported yet."""
        from lockstep.explain.rank_reports import read_records

        if self._where() != self._dir:
            return
        now_s = time.time()
        waited = tuple(int(record["rank"]) for record in read_records(self._dir) if _waits_too_long(record, now_s))
        before, self._waited = self._waited, waited
        if not waited:
            self._told = ""
        elif not self._told and set(waited) & set(before):
            text = self._who_waits((), is_over=False)
            if text is not None and not self._closed.is_set():
                self._told = text
                say(f"WARNING: {text}")

    def _who_waits(self, echoes: Collection[int], *, is_over: bool) -> str | None:
        from lockstep.explain.asking import ask, look_up
        from lockstep.explain.rank_reports import read_reports
        from lockstep.explain.stuck import who_waits

        where = self._where()
        shown = "" if where == self._dir else os.path.relpath(where)
        with self._lock:
            reports = read_reports(where, time.time(), look_up, ask)
        echoes = {*echoes, *(report.rank for report in reports if report.state == "failed")} if is_over else echoes
        reports = [replace(report, state="running") if report.rank in echoes else report for report in reports]
        return who_waits(reports, shown, is_over=is_over)


def _waits_too_long(record: Mapping[str, Any], now_s: float) -> bool:
    from lockstep.explain.sampler import waits_at
    from lockstep.explain.stuck import limit_of_script_s

    if record["ended"] is not None or not waits_at(record["stack"], record["collective"]):
        return False
    return now_s - float(record["since_s"]) > limit_of_script_s(record)
