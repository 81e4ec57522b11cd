"""The control groups of this process: a container's, a job's, and those that contain them."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def own_groups(root: Path = ROOT, membership: Path = MEMBERSHIP, controller: str = "") -> list[Path]:
    """Their directories, from this process's own up to the root; empty: there are none. A limit of each applies.

    Args:
        root: where the hierarchy is mounted.
        membership: the kernel's list of this process's groups.
        controller: the controller of a version 1 hierarchy, such as ``memory``; empty: the hierarchy of version 2.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                group = root / path.lstrip("/")
                return [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return []
