"""Checks of the run directory's disk, and of clocks."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

import psutil

from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn

_MB = 1_000_000
_LITTLE, _NONE = 2_000 * _MB, 100 * _MB
_FEW_FILES = 1000
_SKEW_S = 1.0
_ELSEWHERE = "give another with --run-dir"


def look_at_run_dir(situation: Situation) -> dict[str, Any]:
    """Write a file there."""
    directory, error = situation.run_dir, ""
    try:
        with tempfile.NamedTemporaryFile(prefix=".lockstep-doctor-", dir=directory) as file:
            file.write(b"x")
            os.fsync(file.fileno())
    except OSError as raised:
        error = raised.strerror or str(raised)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if directory.is_relative_to(mount.mountpoint)]
    kind = max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"
    return {"directory": str(directory), "error": error, "kind": kind}


def judge_run_dir(*, directory: str, error: str, kind: str) -> Finding:
    """Whether it can hold a run. (Whether other hosts see it is checked by ``over_hosts``.)"""
    if error:
        return fail(f"{directory}: {error}", _ELSEWHERE)
    if kind in ("tmpfs", "ramfs"):
        return warn(f"{directory} is in memory ({kind}): checkpoints are lost with the machine", _ELSEWHERE)
    return ok(f"{directory} ({kind}) can be written")


def look_at_disk(situation: Situation) -> dict[str, Any]:
    """Free space and free inodes."""
    directory = situation.run_dir
    stats = os.statvfs(directory)
    return {
        "directory": str(directory),
        "free_bytes": shutil.disk_usage(directory).free,
        "free_files": stats.f_favail if stats.f_files else None,
    }


def judge_disk(*, directory: str, free_bytes: int, free_files: int | None) -> Finding:
    """Whether checkpoints fit. ``free_files``: None: there is no limit."""
    room = "remove old runs (lockstep runs lists them), or give another disk with --run-dir"
    found = f"{free_bytes / 1e9:,.1f} GB free in {directory}"
    if free_bytes <= _NONE:
        return fail(f"{found}: a checkpoint has no room", room)
    if free_files is not None and free_files < _FEW_FILES:
        return warn(f"room for {free_files} more files in {directory}", room)
    if free_bytes < _LITTLE:
        return warn(f"{found}: room for few checkpoints", room)
    return ok(found)


def judge_clocks(ahead_s: dict[str, float]) -> Finding:
    """Whether the hosts' clocks agree. ``ahead_s``: by host, how far its clock is ahead of the first host's."""
    late, early = (end(ahead_s, key=lambda host: ahead_s[host]) for end in (min, max))
    skew_s = ahead_s[early] - ahead_s[late]
    if skew_s > _SKEW_S:
        return warn(
            f"the clock of {early} is {skew_s:.0f} s ahead of that of {late}: ages of runs and times in logs are wrong",
            "have chrony or ntpd set both (chronyc makestep)",
        )
    return ok(f"the hosts' clocks agree to {max(skew_s, 0.001):.3f} s")
