"""The cores that processes share."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
