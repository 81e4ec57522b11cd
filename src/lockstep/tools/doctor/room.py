"""Checks of free space: for checkpoints, and for the batches of loader workers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn

SHARED_MEMORY = Path("/dev/shm")
_MB = 1_000_000
_SHM_NEEDED = 16 * _MB
_SHM_EACH = 128 * _MB
"""For the prefetched batches of one process's loader workers: enough for some batches of images."""
_LITTLE, _NONE = 2_000 * _MB, 100 * _MB


def look_at_shared_memory(situation: Situation) -> dict[str, Any]:
    """The size and free space of the file system through which loader workers pass batches."""
    total, _, free = shutil.disk_usage(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else (0, 0, 0)
    return {"total_bytes": total, "free_bytes": free, "num_processes": situation.num_processes}


def judge_shared_memory(*, total_bytes: int, free_bytes: int, num_processes: int) -> Finding:
    """Whether the batches of loader workers fit."""
    found = f"{SHARED_MEMORY} has {free_bytes // _MB:,} MB free of {total_bytes // _MB:,}"
    larger = "give it more (docker run --shm-size=8g or --ipc=host; mount -o remount,size=8G /dev/shm)"
    if free_bytes < _SHM_NEEDED:
        why = "loader workers will be killed by SIGBUS"
        return fail(f"{found}: {why}", larger if total_bytes < 4 * _SHM_EACH else f"remove what is in it, or {larger}")
    if free_bytes < _SHM_EACH * num_processes:
        return warn(f"{found}, for {num_processes} process(es) with their loader workers", larger)
    return ok(found)


def look_at_disk(situation: Situation) -> dict[str, Any]:
    """Free space for the run directory."""
    return {"directory": str(situation.run_dir), "free_bytes": shutil.disk_usage(situation.run_dir).free}


def judge_disk(*, directory: str, free_bytes: int) -> Finding:
    """Whether checkpoints fit."""
    more = "remove old runs (lockstep runs lists them), or give another disk with --run-dir"
    found = f"{free_bytes / 1e9:,.1f} GB free in {directory}"
    if free_bytes <= _NONE:
        return fail(f"{found}: a checkpoint has no room", more)
    return warn(f"{found}: room for few checkpoints", more) if free_bytes < _LITTLE else ok(found)
