"""Checks of the run directory's disk: whether it is writable, its free space and speed, and its clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from lockstep.tools.doctor.finding import Finding, Situation, fail, ok, warn

_MB = 1_000_000
_PIECE = 4 * _MB
_SPEED_BYTES, _SPEED_S = 64 * _MB, 0.5
"""The speed is measured until one of these is reached."""
_LITTLE, _NONE = 2_000 * _MB, 100 * _MB
_FEW_FILES = 1000
_SLOW_BYTES_S = 20 * _MB
_SKEW_S = 1.0
_ELSEWHERE = "give another with --run-dir"
_UNWRITABLE = "nothing can be written there"


@contextmanager
def _probe(directory: Path) -> Iterator[Path]:
    """A temporary file in this directory."""
    number, name = tempfile.mkstemp(prefix=".lockstep-doctor-", dir=directory)
    os.close(number)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def look_at_run_dir(situation: Situation) -> dict[str, Any]:
    """Do what a run does there: write a file, sync it, rename it."""
    directory, error = situation.run_dir, ""
    try:
        with _probe(directory) as path, path.open("wb") as file:
            file.write(b"x")
            os.fsync(file.fileno())
            path.replace(path)
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
    """Free space, free inodes, and the speed at which a checkpoint is written."""
    directory = situation.run_dir
    stats = os.statvfs(directory)
    free, written, took_s = shutil.disk_usage(directory).free, 0, 0.0
    if free > _NONE:
        piece = os.urandom(_PIECE)  # random, so that no file system compresses it
        with contextlib.suppress(OSError), _probe(directory) as path, path.open("wb", buffering=0) as file:
            began_s = time.perf_counter()
            while written < _SPEED_BYTES and took_s < _SPEED_S:
                written += file.write(piece)
                os.fsync(file.fileno())
                took_s = time.perf_counter() - began_s
    return {
        "directory": str(directory),
        "free_bytes": free,
        "free_files": stats.f_favail if stats.f_files else None,
        "speed_bytes_s": written / took_s if written else None,
    }


def judge_disk(*, directory: str, free_bytes: int, free_files: int | None, speed_bytes_s: float | None) -> Finding:
    """Whether checkpoints fit, and are written within seconds.

    Args:
        directory: in which the space is.
        free_bytes: left on its disk.
        free_files: left; None: there is no limit.
        speed_bytes_s: None: nothing could be written.
    """
    room = "remove old runs (lockstep runs --prune), or give another disk with --run-dir"
    found = f"{free_bytes / 1e9:,.1f} GB free in {directory}"
    if free_bytes <= _NONE:
        return fail(f"{found}: a checkpoint has no room", room)
    if free_files is not None and free_files < _FEW_FILES:
        return (warn if free_files > 100 else fail)(f"room for {free_files} more files in {directory}", room)
    if free_bytes < _LITTLE:
        return warn(f"{found}: room for few checkpoints", room)
    if speed_bytes_s is None:
        return ok(f"{found} ({_UNWRITABLE})")
    speed = f"written at {speed_bytes_s / _MB:,.0f} MB/s"
    if speed_bytes_s < _SLOW_BYTES_S:
        return warn(
            f"{found}, {speed}: a checkpoint of 1 GB takes {1e9 / speed_bytes_s:.0f} s",
            "give a faster disk with --run-dir, or save less often (--checkpoint-every)",
        )
    return ok(f"{found}, {speed}")


def look_at_clock(situation: Situation) -> dict[str, Any]:
    """By how much this machine's clock is ahead of the run directory's file server."""
    with contextlib.suppress(OSError), _probe(situation.run_dir) as path:
        before_s = time.time()
        path.write_bytes(b"x")
        return {"ahead_s": (before_s + time.time()) / 2 - path.stat().st_mtime}
    return {"ahead_s": None}


def judge_clock(*, ahead_s: float | None) -> Finding:
    """Whether the two clocks agree. None: the run directory is not writable."""
    if ahead_s is None:
        return ok(f"not compared: {_UNWRITABLE}")
    if abs(ahead_s) > _SKEW_S:
        return warn(
            f"this machine's clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of the run "
            "directory: ages of runs and of files are wrong",
            "have chrony or ntpd set it (chronyc makestep)",
        )
    return ok("agrees with the run directory's")


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
