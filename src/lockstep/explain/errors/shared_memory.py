"""How much is left of /dev/shm, by which loader workers and NCCL hand over data."""

from __future__ import annotations

import os

from lockstep.explain.errors.scene import size

PATH = "/dev/shm"


def described() -> str:
    """One sentence, as of now: whoever filled it may have ended."""
    try:
        filesystem = os.statvfs(PATH)
    except OSError:
        return f"This machine has no {PATH}."
    free, total = filesystem.f_bavail * filesystem.f_frsize, filesystem.f_blocks * filesystem.f_frsize
    return f"{PATH} has {size(total)}, of which {size(free)} are free now."
