"""Whether every machine of a run sees its directory: rank 0 leaves a file there, and one process of each machine looks for it.

Checkpoints are written and read by all ranks. A machine with a directory of its own under the same name would find out when
it resumes, or never.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

PATIENCE_S = 5.0
"""How long a new file may take to be seen: network file systems remember for a moment what was not there."""


def leave_mark(run_dir: Path, token: str) -> None:
    """Write the file. For rank 0; ``token`` is of this launch alone."""
    (run_dir / _name(token)).write_text(token)


def sees_mark(run_dir: Path, token: str, patience_s: float = PATIENCE_S) -> bool:
    """Whether the file is there."""
    deadline = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError):
            list(run_dir.iterdir())  # has a network file system ask anew
            return (run_dir / _name(token)).read_text() == token
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


def remove_mark(run_dir: Path, token: str) -> None:
    """For rank 0, when all have looked."""
    (run_dir / _name(token)).unlink(missing_ok=True)


def _name(token: str) -> str:
    return f"seen-{token}"
