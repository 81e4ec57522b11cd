"""What the kernel knows about a process: its state, memory, and what it has read and written. (Linux.)"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_CLOCK_S = 1.0
"""The kernel knows creation times only to within a clock tick."""
_OWN, _WITH_CHILDREN = slice(11, 13), slice(11, 15)
"""Processor time, in user code and in the kernel, among the fields of ``_stat``."""
_MOST_DESCENDANTS = 200


@dataclass(frozen=True)
class ProcessFacts:
    """The current state of one process."""

    state: str
    """The kernel's letter: ``R`` and ``S``: running or sleeping; ``D``: blocked in the kernel; ``T``: stopped by a signal;
    ``t``: stopped by a debugger; ``Z`` and ``X``: dead."""
    io_bytes: int
    """Read and written since it started."""
    held_in: str
    """The kernel function in which it is blocked; empty: unknown."""
    cpu_s: float = 0.0
    """Processor time of all its threads, in seconds."""

    def why_blocked(self) -> str:
        """Why it is blocked in the kernel, in words; empty: it is not."""
        if self.state != "D":
            return ""
        where = f", in {self.held_in}" if self.held_in else ""
        return f"blocked in the kernel{where}: a slow disk, or a file system or driver that hangs"


def facts_of(pid: int | str = "self") -> ProcessFacts | None:
    """The facts of a process on this machine; None: it has exited."""
    proc = Path("/proc", str(pid))
    try:
        status = (proc / "status").read_text(errors="replace")
    except OSError:
        return None
    fields = dict(re.findall(r"^(\w+):\s+(\w+)", status, flags=re.MULTILINE))
    held_in = ""
    if fields.get("State") == "D":
        with contextlib.suppress(OSError):
            held_in = (proc / "wchan").read_text(errors="replace").strip("0 \n")
    return ProcessFacts(
        state=fields.get("State", "R"),
        io_bytes=io_bytes(pid),
        held_in=held_in,
        cpu_s=_seconds(_stat(pid)[_OWN]),
    )


@dataclass(frozen=True)
class Usage:
    """What a process has used since it started."""

    name: str
    """Of its program."""
    cpu_s: float
    """Processor time in seconds, with that of its children that have ended."""
    io_bytes: int
    """Read and written."""
    num_wakes: int
    """How often its main thread has waited for something."""


def usage_of(pid: int) -> Usage | None:
    """What a process on this machine has used; None: it has exited."""
    try:
        status = Path("/proc", str(pid), "status").read_text(errors="replace")
    except OSError:
        return None
    fields = dict(re.findall(r"^(\w+):\s+(.*)", status, flags=re.MULTILINE))
    return Usage(
        name=fields.get("Name", ""),
        cpu_s=_seconds(_stat(pid)[_WITH_CHILDREN]),
        io_bytes=io_bytes(pid),
        num_wakes=int(fields.get("voluntary_ctxt_switches", 0)),
    )


def is_blocked() -> bool:
    """Whether the main thread of this process is blocked in the kernel, by a disk for example."""
    return _stat("self")[:1] == ["D"]


def written_bytes() -> int:
    """What this machine has written to its disks and file servers since it started; 0: unknown."""
    with contextlib.suppress(OSError):
        pages = re.search(r"^nr_written (\d+)", Path("/proc/vmstat").read_text(), flags=re.MULTILINE)
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0
    return 0


def descendants(pid: int | str = "self") -> list[int]:
    """The ids of a process's children, and of theirs; none if the kernel does not tell. At most ``_MOST_DESCENDANTS``."""
    found = _children(pid)
    for child in found:  # which grows meanwhile
        if len(found) < _MOST_DESCENDANTS:
            found += _children(child)
    return found[:_MOST_DESCENDANTS]


def _children(pid: int | str) -> list[int]:
    children: list[int] = []
    for path in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):
            children += map(int, path.read_text().split())
    return children


def _stat(pid: int | str) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; none: it has exited."""
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _seconds(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def io_bytes(pid: int | str = "self") -> int:
    """How much a process has read and written since it started, in bytes; 0: unknown."""
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc", str(pid), "io").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("rchar", "wchar")))
    return 0


def own_memory() -> dict[str, int]:
    """This process's resident memory, ``rss_bytes``, and what is free on this machine, ``available_bytes``; none if unknown."""
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
        reported_s: when it last reported, in seconds since 1970. A process created later has reused the id.
    """
    import psutil  # imported here, since it would delay the start of every process

    try:
        process = psutil.Process(pid)
        if process.create_time() > reported_s + _CLOCK_S or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return "gone"
        return "stopped" if process.status() == psutil.STATUS_STOPPED else "running"
    except psutil.Error:
        return "gone"
