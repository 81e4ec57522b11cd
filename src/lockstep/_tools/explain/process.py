"""What the kernel knows about a process: its state, memory, and what it has used. (Linux.)"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_CLOCK_S = 1.0
"""The kernel knows creation times only to within a clock tick."""
_WAITS = {"nanosleep": "sleeping", "futex": "lock", "flock": "flock", "locks_lock": "flock", "setlk": "flock"}
"""The kind of wait for a part of the name of the kernel's function (``/proc/PID/wchan``)."""


@dataclass(frozen=True)
class ProcessFacts:
    """The current state of one process."""

    state: str
    """The state in psutil's words: ``running``, ``sleeping``, ``stopped``, ``disk-sleep``,
    ``tracing-stop``, ``zombie``, ..."""
    io_bytes: int = 0
    """The bytes read and written since the process started."""
    cpu_s: float = 0.0
    """The processor time of all threads, in seconds."""
    sleeps_in: str = ""
    """The kernel's function in which the main thread sleeps; empty: it does not sleep, or the
    function is unknown."""

    def describe_sleep(self) -> str:
        """Where the process sleeps, for the user; empty: it does not."""
        in_what = f" in the kernel ({self.sleeps_in})" if self.sleeps_in else ""
        return f"it sleeps{in_what}" if self.state == "sleeping" else ""

    def why_blocked(self) -> str:
        """Why the process is blocked in the kernel, for the user; empty: it is not."""
        return "blocked in the kernel: a slow disk, or a hanging file system or driver" if self.state == "disk-sleep" else ""


def facts_of(pid: int) -> ProcessFacts | None:
    """The facts of a process on this machine; None: it has exited."""
    import psutil  # imported here, since it would delay the start of every process

    try:
        process = psutil.Process(pid)
        used = process.cpu_times()
        return ProcessFacts(str(process.status()), io_bytes(pid), used.user + used.system, _sleeps_in(pid))
    except psutil.Error:
        return None


def waits_in(pid: int) -> str:
    """What the main thread of a process waits for in the kernel: ``sleeping``, for a time to pass;
    a ``lock``; a ``flock``, the lock of a file; empty: anything else, or it is not known."""
    where = _sleeps_in(pid)
    return next((what for part, what in _WAITS.items() if part in where), "")


def _sleeps_in(pid: int) -> str:
    with contextlib.suppress(OSError):
        name = Path("/proc", str(pid), "wchan").read_text(errors="replace")
        return name if name.isidentifier() else ""  # 0: it runs, or this is not for us
    return ""


def io_bytes(pid: int | str = "self") -> int:
    """How much a process has read and written since it started, in bytes; 0: unknown."""
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc", str(pid), "io").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("rchar", "wchar")))
    return 0


def own_memory() -> dict[str, int]:
    """This process's resident memory, ``rss_bytes``, and what is free on this machine,
    ``available_bytes``; none if unknown."""
    memory = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        memory["rss_bytes"] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        free = re.search(r"^MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
        if free is not None:
            memory["available_bytes"] = int(free[1]) * 1024
    return memory


def state_of(pid: int, reported_s: float) -> str:
    """Whether a process of this machine is ``running``, ``stopped`` or ``gone``.

    Args:
        pid: of the process.
        reported_s: when it last reported, in seconds since 1970. A process created later has reused
            the id.
    """
    import psutil  # imported here, since it would delay the start of every process

    try:
        process = psutil.Process(pid)
        if process.create_time() > reported_s + _CLOCK_S or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return "gone"
        return "stopped" if process.status() == psutil.STATUS_STOPPED else "running"
    except psutil.Error:
        return "gone"
