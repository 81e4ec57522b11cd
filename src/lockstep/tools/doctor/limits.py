"""Checks of limits on shared memory and file descriptors."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn

SHARED_MEMORY = Path("/dev/shm")
_MB = 1_000_000
_SHM_NEEDED = 16 * _MB
_SHM_EACH = 128 * _MB
"""For the prefetched batches of one process's loader workers: enough for some batches of images."""
_FILES_EACH = 64
_FILES_A_RANK = 8
"""File descriptors that a process needs at least, with its sockets to other ranks, and the launcher for each rank."""


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


def look_at_files(situation: Situation) -> dict[str, Any]:
    """The limit on open files, and how many are needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    world_size = max(situation.num_processes, situation.world.world_size)
    needed = _FILES_EACH * (1 + (situation.config.workers or 0)) + _FILES_A_RANK * world_size
    return {"soft": soft, "hard": hard, "needed": needed}


def judge_files(*, soft: int, hard: int, needed: int) -> Finding:
    """Whether a process may open enough files."""
    found = f"a process may have {_number(soft)} files open"
    remedy = f"ulimit -n {max(4096, 2 * needed)} in the shell that starts the run" + (
        "" if hard in (-1, resource.RLIM_INFINITY) or hard >= 4096 else f" (root must raise the hard limit, {hard})"
    )
    if 0 <= soft < needed:
        return fail(f"{found}, and needs about {needed}: it will end with 'Too many open files'", remedy)
    if 0 <= soft < max(1024, 2 * needed):
        return warn(f"{found}, and needs about {needed} (more with loader workers)", remedy)
    return ok(found)


def _number(limit: int) -> str:
    return "any number of" if limit in (-1, resource.RLIM_INFINITY) else f"{limit:,}"
