"""Whether a worker, or a process that it has started, does anything: from the kernel's counters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_BUSY_SHARE = 0.05
"""Of a core's time: a thread that polls, and the black box, stay below it."""
_BUSY_BYTES_S = 1 << 18
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """What the processes of a session have used so far."""

    cpu_s: float = 0.0
    num_bytes: int = 0
    """Read and written."""
    is_blocked: bool = False
    """Whether one of them is blocked in the kernel now, by a disk."""


def usage_of(sessions: Collection[int]) -> Mapping[int, Usage]:
    """By session: a worker's has its process id."""
    found = {session: Usage() for session in sessions}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            if (usage := found.get(int(fields[3]))) is None:
                continue
            usage.is_blocked = usage.is_blocked or fields[0] == "D"
            usage.cpu_s += sum(map(int, fields[11:15])) * _TICK_S  # its own, and that of its children that have ended
            lines = path.with_name("io").read_text().splitlines()
            usage.num_bytes += sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
    return found


class Idleness:
    """For how long one session has done nothing. Pure. ``now``: in seconds, of any clock, as for ``note``."""

    def __init__(self, now: float) -> None:
        self._before: Usage | None = None
        self._noted_at = self._worked_at = now

    def note(self, usage: Usage, now: float) -> None:
        """Called about once a second."""
        before, passed_s = self._before or usage, now - self._noted_at
        used_s, num_bytes = usage.cpu_s - before.cpu_s, usage.num_bytes - before.num_bytes
        if used_s > _BUSY_SHARE * passed_s or num_bytes > _BUSY_BYTES_S * passed_s or usage.is_blocked:
            self._worked_at = now
        self._before, self._noted_at = usage, now

    @property
    def idle_s(self) -> float:
        """Up to the last note."""
        return self._noted_at - self._worked_at
