"""Checking that every machine of a run sees its directory: rank 0 writes a file there, and each machine looks for it.

Checkpoints are written and read by all ranks. A machine with another directory at the same path would otherwise be noticed
on resume, or never.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from lockstep.base.regular import open_to_write, read_bytes

PATIENCE_S = 5.0
"""Seconds until a new file must be visible: network file systems cache failed lookups briefly."""


def leave_mark(run_dir: Path, token: str) -> None:
    """Write the file, on rank 0. ``token`` is unique to this launch."""
    with os.fdopen(open_to_write(run_dir / _name(token), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(token)


def sees_mark(run_dir: Path, token: str, patience_s: float = PATIENCE_S) -> bool:
    """Whether the file is visible."""
    deadline = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError):
            list(run_dir.iterdir())  # refreshes the cache of a network file system
            return read_bytes(run_dir / _name(token), 1000) == token.encode()
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


def remove_mark(run_dir: Path, token: str) -> None:
    """Remove the file, on rank 0, after all have looked."""
    (run_dir / _name(token)).unlink(missing_ok=True)


def _name(token: str) -> str:
    return f"seen-{token}"
