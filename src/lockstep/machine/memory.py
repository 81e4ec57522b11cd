"""The main memory that is free."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from lockstep.machine.cgroups import MEMBERSHIP, ROOT, own_groups


def free_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """The main memory that new processes could use, within the limits of this container or job."""
    free = [int(psutil.virtual_memory().available)]
    for group in own_groups(root, membership):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
            free.append(max(0, limit - used))
    return min(free)
