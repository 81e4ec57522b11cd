"""Main memory: what limits it, and how many processes were killed because it ran out."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from lockstep._world.machine.cores import MEMBERSHIP, ROOT, own_groups

_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""The files with the limit of a control group, of version 2 and of version 1."""
_KILLS = ("memory.events", "memory.oom_control")
_VMSTAT = Path("/proc/vmstat")
_NO_LIMIT = 1 << 60
"""Version 1 writes a number of about this size where there is no limit."""


def limit_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """The memory limit of this container or job; None: it has none."""
    limits = []
    for file in (group / name for group in _groups(root, membership) for name in _LIMITS):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            limits.append(int(file.read_text()))
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def oom_kills(root: Path = ROOT, membership: Path = MEMBERSHIP, vmstat: Path = _VMSTAT) -> int:
    """The number of processes that the kernel has killed because memory ran out: in the nearest
    control group that counts them, otherwise on the whole machine."""
    for counter in (*(group / name for group in _groups(root, membership) for name in _KILLS), vmstat):
        with contextlib.suppress(OSError):
            if (count := re.search(r"^oom_kill (\d+)", counter.read_text(), flags=re.MULTILINE)) is not None:
                return int(count[1])
    return 0


def _groups(root: Path, membership: Path) -> list[Path]:
    return own_groups(root, membership) + own_groups(root / "memory", membership, "memory")
