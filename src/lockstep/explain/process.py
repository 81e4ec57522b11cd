"""What the kernel knows of a process: whether it is held, swaps, reads and writes, and what memory is left. (Linux.)"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_SWAPS_BYTES = 1 << 26
"""More than this in swap is worth telling."""


@dataclass(frozen=True)
class Facts:
    """Of one process, now."""

    state: str
    """A letter: ``R`` and ``S``: it runs, or could; ``D``: the kernel holds it; ``T``: stopped; ``t``: a debugger has it."""
    rss_bytes: int
    swap_bytes: int
    io_bytes: int
    """Read and written since it began."""
    held_in: str
    """Where in the kernel it waits, if it tells."""

    @property
    def swaps(self) -> bool:
        """Whether so much of its memory is on disk that this may be what it waits for."""
        return self.swap_bytes > max(_SWAPS_BYTES, self.rss_bytes // 10)


def facts_of(pid: int | str = "self") -> Facts | None:
    """The facts of a process of this machine; None: it is gone."""
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
    kib = 1024
    return Facts(
        state=fields.get("State", "R"),
        rss_bytes=int(fields.get("VmRSS", 0)) * kib,
        swap_bytes=int(fields.get("VmSwap", 0)) * kib,
        io_bytes=io_bytes(pid),
        held_in=held_in,
    )


def io_bytes(pid: int | str = "self") -> int:
    """What a process has read and written since it began; 0: it is not known."""
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc", str(pid), "io").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("rchar", "wchar")))
    return 0


def own_memory() -> dict[str, int]:
    """What this process has of the machine's memory, and what the machine has left: ``rss_bytes``, ``available_bytes``."""
    memory = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        memory["rss_bytes"] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        free = re.search(r"^MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
        if free is not None:
            memory["available_bytes"] = int(free[1]) * 1024
    return memory
