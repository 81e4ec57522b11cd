"""Whether a process, or one that it has started, works while its main thread stays at one line.

A rank that computes in one long call, writes a large file or waits for a process that does has a
good reason to keep the others waiting. One that sleeps, or waits for what never comes, uses
nothing: neither processor time nor input and output.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from lockstep._tools.explain.process import io_bytes

BUSY_BYTES = 1 << 18
"""The bytes read or written between two measurements from which a process is busy."""
LEAST_SHARE = 0.03
"""The share of one core from which a process works. It is small because each process gets little
where there are many more processes than cores."""
COMPUTES, READS_OR_WRITES = "it computes", "it reads or writes files"
CHILDREN_WORK = "a child process of it is working"
_SPAN_S = 4.0


@dataclass(frozen=True)
class Used:
    """What a process, and the processes that it has started, have used up to a moment."""

    time_s: float
    own_s: float
    """The processor time of the process, in seconds."""
    own_bytes: int
    """The bytes that the process has read and written."""
    children_s: float = 0.0
    children_bytes: int = 0


class WorkMeter:
    """Measures the work of this process. One thread calls it, whose own processor time does not
    count."""

    def __init__(self) -> None:
        self.worked_s = time.time()
        """The time at which work was last seen, in seconds since 1970."""
        self.newest = ""
        """The work that was last seen, for the user; empty: the main thread has moved since."""
        self._before: Used | None = None

    def look(self, now_s: float, *, is_still: bool) -> None:
        """Called twice a second.

        Args:
            now_s: seconds since 1970.
            is_still: whether the main thread has stayed at one line for a while, and not in code in
                which ranks wait for each other.
        """
        if not is_still:
            self._before, self.newest = None, ""
        elif self._before is None or now_s - self._before.time_s >= _SPAN_S:
            before, self._before = self._before, _measure(now_s)
            if before is not None and (work := work_between(before, self._before)):
                self.worked_s, self.newest = now_s, work


def work_between(before: Used, after: Used) -> str:
    """The work that was done between two moments, for the user; empty: none. Pure."""
    least_s = LEAST_SHARE * (after.time_s - before.time_s)
    if after.own_s - before.own_s >= least_s:
        return COMPUTES
    if after.own_bytes - before.own_bytes > BUSY_BYTES:
        return READS_OR_WRITES
    works = after.children_s - before.children_s >= least_s or after.children_bytes - before.children_bytes > BUSY_BYTES
    return CHILDREN_WORK if works else ""


def _measure(now_s: float) -> Used:
    import psutil  # imported here, since it would delay the start of every process

    times = os.times()
    # of those that have ended
    children_s, children_bytes = times.children_user + times.children_system, 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            used = child.cpu_times()
            children_s += used.user + used.system + used.children_user + used.children_system
            children_bytes += io_bytes(child.pid)
    return Used(now_s, time.process_time() - time.thread_time(), io_bytes(), children_s, children_bytes)
