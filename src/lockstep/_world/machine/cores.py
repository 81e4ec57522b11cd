"""The cores that this process may use, and the control groups that limit it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def own_groups(root: Path = ROOT, membership: Path = MEMBERSHIP, controller: str = "") -> list[Path]:
    """Their directories, from this process's own up to the root; empty: there are none. A limit of
    each applies.

    Args:
        root: where the hierarchy is mounted.
        membership: the kernel's list of this process's groups.
        controller: the controller of a version 1 hierarchy, such as ``memory``; empty: the
            hierarchy of version 2.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # The line of version 2 is `0::/path`: its empty list of controllers, split, contains
            # the empty name.
            if controller in controllers.split(","):
                group = root / path.lstrip("/")
                return [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return []


def num_cores() -> int:
    """The cores this process may use: its affinity, or less where a cgroup (v2) sets a quota. At
    least 1.

    A quota of 1.5 cores counts as 1: threads beyond it would be stopped in the middle of their
    work."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    quota = _cgroup_cores(ROOT, MEMBERSHIP)
    return cores if quota is None else max(1, min(cores, int(quota)))


def threads_for(num_shards: int, cores: int | None = None) -> int:
    """The number of threads of each process of a run, where none is asked for: the cores of a
    machine divided by the number of shards, and so independent of the number of processes and
    machines. ``cores``: None: the cores that this process may use."""
    return max(1, (cores or num_cores()) // num_shards)


def _cgroup_cores(root: Path, membership: Path) -> float | None:
    """Quota in cores: the least on the way from this process's cgroup (v2) up to the root; None: no
    quota."""
    least = None
    for folder in own_groups(root, membership):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            cores = int(quota) / int(period)
            least = cores if least is None else min(least, cores)
    return least
