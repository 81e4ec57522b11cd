"""The check of free space for the batches of loader workers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lockstep._tools.doctor.finding import Finding, Situation, fail, ok, warn
from lockstep._world.machine.sizes import counted

SHARED_MEMORY = Path("/dev/shm")
_MB = 1_000_000
_SHM_NEEDED = 16 * _MB
_SHM_EACH = 128 * _MB
"""The space for the prefetched batches of one process's loader workers: enough for some batches of
images."""


def look_at_shared_memory(situation: Situation) -> dict[str, Any]:
    """The size and free space of the file system through which loader workers pass batches."""
    total, _, free = shutil.disk_usage(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else (0, 0, 0)
    return {"total_bytes": total, "free_bytes": free, "num_processes": situation.num_processes}


def judge_shared_memory(*, total_bytes: int, free_bytes: int, num_processes: int) -> Finding:
    """Whether the batches of loader workers fit."""
    found = f"{SHARED_MEMORY} has {free_bytes // _MB:,} MB free of {total_bytes // _MB:,}"
    larger = (
        "enlarge it (docker run --shm-size=8g or --ipc=host; Kubernetes: a volume "
        "`emptyDir: {medium: Memory}` mounted at /dev/shm; otherwise mount -o remount,size=8G /dev/shm)"
    )
    if free_bytes < _SHM_NEEDED:
        why = "loader workers will be killed by SIGBUS"
        return fail(
            f"{found}: {why}",
            larger if total_bytes < 4 * _SHM_EACH else f"delete files in it, or {larger}",
            code="shared-memory-full",
        )
    if free_bytes < _SHM_EACH * num_processes:
        processes = counted(num_processes, "process", "processes")
        return warn(f"{found}, for the loader workers of {processes}", larger, code="shared-memory-small")
    return ok(found)
