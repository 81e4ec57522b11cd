"""The control groups (v2) of this process: a container's, a job's, and those they lie in."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def own_groups(root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Their directories, from this process's own to the root; empty: there are none. A limit of each applies."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = membership.read_text().splitlines()
    path = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), None)
    if path is None:
        return []
    group = root / path
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
