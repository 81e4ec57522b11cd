"""Checks of limits on shared memory, file descriptors, and processes."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import psutil

from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn
from lockstep.world.machine.cgroups import own_groups

SHARED_MEMORY = Path("/dev/shm")
_MB = 1_000_000
_SHM_NEEDED = 16 * _MB
_SHM_EACH = 128 * _MB
"""For the prefetched batches of one process's loader workers: enough for some batches of images."""
_FILES_EACH = 64
_FILES_A_RANK = 8
"""File descriptors that a process needs at least, with its sockets to other ranks, and the launcher for each rank."""
_THREADS_EACH = 16
"""Threads of one process, with those of PyTorch, Gloo and lockstep."""


def _processes(situation: Situation) -> int:
    """The number of processes, with their loader workers."""
    return situation.num_processes * (1 + (situation.config.workers or 0))


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


def look_at_processes(situation: Situation) -> dict[str, Any]:
    """How many more processes and threads the user and the control group may have, and how many are needed."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    uid, num_mine = os.getuid(), 0
    if uid != 0 and soft >= 0:  # root has no limit
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.uids().real == uid:
                    num_mine += process.num_threads()
    rooms = [soft - num_mine] if uid != 0 and soft >= 0 else []
    for group in own_groups():
        most, now = (next(iter(_lines(group / f"pids.{name}")), "max") for name in ("max", "current"))
        if most != "max" and now.isdecimal():
            rooms.append(int(most) - int(now))
    threads = situation.config.threads or 1
    needed = _processes(situation) * (threads + _THREADS_EACH)
    return {"room": min(rooms, default=None), "needed": needed}


def judge_processes(*, room: int | None, needed: int) -> Finding:
    """Whether the run's processes and threads can be created. ``room``: None: there is no limit."""
    if room is None:
        return ok("no limit of processes")
    found = f"room for {room} more processes and threads"
    remedy = "ulimit -u 65536, a larger pids limit of the container (docker run --pids-limit), or end what else runs"
    if room < needed:
        return fail(f"{found}, and the run needs about {needed}: 'Resource temporarily unavailable'", remedy)
    if room < 4 * needed:
        return warn(f"{found}, and the run needs about {needed}", remedy)
    return ok(found)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(limit: int) -> str:
    return "any number of" if limit in (-1, resource.RLIM_INFINITY) else f"{limit:,}"
