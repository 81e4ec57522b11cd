"""Likely causes of a worker's end that its own words do not name: memory that ran out, a full ``/dev/shm``, a known crash."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lockstep.launch.failures import Failure
from lockstep.machine.sizes import size

_LOADER = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: (Bus error|Killed)")
_CGROUPS = Path("/sys/fs/cgroup")
_SHM = Path("/dev/shm")


class Causes:
    """Those of one start of the workers: what the kernel has counted since.

    Args:
        environ: the workers' environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._kills_before = oom_kills()

    def name(self, failure: Failure) -> Failure:
        """The failure with what is likely to have ended this worker, and the remedy, if more is known than its own words."""
        loader = _LOADER.search(failure.text or failure.message)
        whose = f"loader worker {loader[1]} of rank {failure.rank}" if loader else f"rank {failure.rank}"
        signalled = {"Bus error": "SIGBUS", "Killed": "SIGKILL"}[loader[2]] if loader else failure.kind
        if signalled == "SIGBUS" and (free := _shared_memory()):
            return replace(
                failure,
                remark=f"{free}: {whose} found it full. Loader workers hand batches over there. Use fewer of them "
                "(num_workers=, or --workers), smaller batches or a smaller prefetch_factor, or enlarge it: docker run "
                "--shm-size=8g (or --ipc=host), mount -o remount,size=8g /dev/shm",
            )
        if signalled == "SIGKILL" and (kills := oom_kills() - self._kills_before) > 0:
            many = "a process" if kills == 1 else f"{kills} processes"
            remark = (
                f"The kernel has killed {many} during this run because memory ran out, and most likely {whose}. Use smaller "
                f"batches, fewer loader workers or fewer processes on this machine{_limit()}"
            )
            message = failure.message if loader else "killed by the kernel, because memory ran out"
            return replace(failure, message=message, remark=remark)
        if signalled == "SIGSEGV" and self._environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
            return replace(
                failure,
                remark="TORCH_DISTRIBUTED_DEBUG=DETAIL is set: with it PyTorch has been seen to crash where "
                "DistributedDataParallel is made (2.13, Gloo). Set it to INFO, or leave it out",
            )
        return failure


def oom_kills(cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """How many processes the kernel has killed for want of memory: those of this process's control group, where it counts
    them, else all of the machine."""
    counters = (group / name for group in _groups(cgroups, proc) for name in ("memory.events", "memory.oom_control"))
    for counter in (*counters, proc / "vmstat"):
        with contextlib.suppress(OSError):
            if (count := re.search(r"^oom_kill (\d+)", counter.read_text(), flags=re.MULTILINE)) is not None:
                return int(count[1])
    return 0


def _groups(cgroups: Path, proc: Path) -> list[Path]:
    """The directories of this process's control group for memory: of the second version of control groups, or the first."""
    groups = []
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                groups.append(cgroups / ("memory" if kinds else "") / path.lstrip("/"))
    return groups


def _limit() -> str:
    for group in _groups(_CGROUPS, Path("/proc")):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                if (limit := int((group / name).read_text())) < 1 << 60:
                    return f", or raise the limit of this container or job: {size(limit)}"
    return ""


def _shared_memory() -> str:
    with contextlib.suppress(OSError):
        filesystem = os.statvfs(_SHM)
        whole, free = (size(filesystem.f_frsize * blocks) for blocks in (filesystem.f_blocks, filesystem.f_bavail))
        return f"{_SHM} of this machine has {whole}, {free} of them free now"
    return ""
