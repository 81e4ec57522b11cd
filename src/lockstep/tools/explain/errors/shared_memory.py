"""How much of /dev/shm is free, through which loader workers and NCCL pass data."""

from __future__ import annotations

import os

from lockstep.world.machine.sizes import size

PATH = "/dev/shm"


def described() -> str:
    """One sentence about the present; what filled it may be gone."""
    try:
        filesystem = os.statvfs(PATH)
    except OSError:
        return f"This machine has no {PATH}."
    free, total = filesystem.f_bavail * filesystem.f_frsize, filesystem.f_blocks * filesystem.f_frsize
    return f"{PATH} has {size(total)}, of which {size(free)} are free now."
