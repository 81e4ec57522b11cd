"""Likely causes of a worker's end that its own words do not name: memory that ran out, and a full ``/dev/shm``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

from lockstep.launch.failures import Failure

_LOADER = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: (Bus error|Killed)")
_CGROUPS = Path("/sys/fs/cgroup")
_SHM = Path("/dev/shm")


class Causes:
    """Those of one start of the workers: what the kernel has counted since."""

    def __init__(self) -> None:
        self._kills_before = oom_kills()

    def remark(self, failure: Failure) -> str:
        """What is likely to have ended this worker, and the remedy; empty: nothing is known beyond its own words."""
        loader = _LOADER.search(failure.text or failure.message)
        whose = f"loader worker {loader[1]} of rank {failure.rank}" if loader else f"rank {failure.rank}"
        if (loader[2] == "Bus error" if loader else failure.kind == signal.Signals.SIGBUS.name) and (
            free := _shared_memory()
        ):
            return (
                f"{free}: {whose} found it full. Loader workers hand batches over there. Use fewer of them (num_workers=, or "
                "--workers), smaller batches or a smaller prefetch_factor, or enlarge it: docker run --shm-size=8g (or "
                "--ipc=host), mount -o remount,size=8g /dev/shm"
            )
        was_killed = loader[2] == "Killed" if loader else failure.kind == signal.Signals.SIGKILL.name
        if was_killed and (kills := oom_kills() - self._kills_before) > 0:
            many = "a process" if kills == 1 else f"{kills} processes"
            return (
                f"Memory ran out: the kernel killed {many} for it during this run, and most likely {whose}. Use smaller "
                f"batches, fewer loader workers or fewer processes on this machine{_limit()}"
            )
        return ""


def oom_kills(cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """How many processes the kernel has killed for want of memory: those of this process's control group, where it counts
    them, else all of the machine."""
    counters = []
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                counters.append(cgroups / path.lstrip("/") / "memory.events")
            elif "memory" in kinds.split(","):
                counters.append(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
    for counter in (*counters, proc / "vmstat"):
        with contextlib.suppress(OSError):
            if (found := re.search(r"^oom_kill (\d+)", counter.read_text(), flags=re.MULTILINE)) is not None:
                return int(found[1])
    return 0


def _limit() -> str:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            if (limit := int((_CGROUPS / name).read_text())) < 1 << 60:
                return f", or raise its limit ({limit / 1e9:.1f} GB for this container)"
    return ""


def _shared_memory() -> str:
    with contextlib.suppress(OSError):
        found = os.statvfs(_SHM)
        size, free = found.f_frsize * found.f_blocks / 1e6, found.f_frsize * found.f_bavail / 1e6
        return f"{_SHM} of this machine has {size:.0f} MB, {free:.0f} MB of them free now"
    return ""
