"""Detecting workers that are stopped (SIGSTOP, Ctrl-Z) while others wait for them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping

_LOOK_S = 1.0


class Standstill:
    """Checks the workers' process states at intervals; costs the workers nothing.

    Only time in which others could wait counts: not while all workers are stopped (the whole run was suspended), nor while
    the launcher itself was. A worker that ran between two checks starts at zero.

    Args:
        nproc: number of workers.
        timeout_s: how long the others would wait.
    """

    def __init__(self, nproc: int, timeout_s: float) -> None:
        self.limit_s = timeout_s / 2
        """Seconds after which a stopped worker must be killed."""
        self._interval_s = min(_LOOK_S, timeout_s / 10) if nproc > 1 else math.inf
        self._looked_at = time.monotonic()
        self._stopped: dict[int, tuple[float, float]] = {}  # by rank: seconds, and processor time

    @property
    def next_look(self) -> float:
        """When to call ``look`` again, in the time of ``time.monotonic``."""
        return self._looked_at + self._interval_s

    def look(self, pids: Mapping[int, int]) -> dict[int, float]:
        """The ranks that are stopped now, with the seconds for which they are known to be; longest first."""
        now = time.monotonic()
        passed_s = min(now - self._looked_at, 2 * self._interval_s)
        self._looked_at = now
        stopped = {rank: cpu for rank, pid in pids.items() if (cpu := _cpu_if_stopped(pid)) is not None}
        if len(stopped) == len(pids):
            passed_s = 0.0
        before = self._stopped
        self._stopped = {
            rank: (before[rank][0] + passed_s if rank in before and before[rank][1] == cpu else 0.0, cpu)
            for rank, cpu in stopped.items()
        }
        ranks = sorted(stopped, key=lambda rank: -self._stopped[rank][0])
        return {rank: self._stopped[rank][0] for rank in ranks}


def _cpu_if_stopped(pid: int) -> float | None:
    """The processor time of a stopped process, in seconds; None: it is not stopped (but, perhaps, held by a debugger)."""
    import psutil  # only here: it would delay the start of every launch

    with contextlib.suppress(psutil.Error, OSError):  # it has ended
        if (process := psutil.Process(pid)).status() == psutil.STATUS_STOPPED:
            return sum(process.cpu_times()[:2])  # its own: of the user and of the system
    return None
