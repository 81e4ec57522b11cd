"""Checks that every machine of a run sees its directory: rank 0 writes a file there, and each
machine looks for it.

All ranks write and read checkpoints. Without the check, a machine with another directory at the
same path would be noticed on resume, or never.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from lockstep._base.nofollow import open_to_write
from lockstep._base.regular_files import read_bytes
from lockstep._world.comm.collectives import Collectives
from lockstep._world.environment import World

PATIENCE_S = 5.0
"""The number of seconds until a new file must be visible. Network file systems cache failed lookups
for a few seconds."""


def hosts_without(directory: Path, token: str, world: World, collectives: Collectives) -> list[str]:
    """Returns the hosts that do not see a file which rank 0 writes to a directory. Every rank must
    call it, and it blocks until all have.

    Args:
        directory: the directory, the same on every rank.
        token: a name that is unique to this launch, the same on every rank.

    Raises:
        OSError: rank 0 cannot write there. Raised on every rank.
    """
    error = ""
    if world.rank == 0:
        try:
            write_mark(directory, token)
        except OSError as failed:
            error = str(failed)
    if error := collectives.broadcast_plain(error):
        raise OSError(error)
    sees = world.local_rank > 0 or _sees_mark(directory, token)
    hosts = collectives.all_gather_plain(None if sees else world.host)
    if world.rank == 0:
        (directory / _name(token)).unlink(missing_ok=True)
    return list(dict.fromkeys(host for host in hosts if host is not None))


def write_mark(run_dir: Path, token: str) -> None:
    """Writes the file. ``token`` is unique to this launch."""
    with os.fdopen(open_to_write(run_dir / _name(token), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(token)


def _sees_mark(run_dir: Path, token: str) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            list(run_dir.iterdir())  # refreshes the cache of a network file system
            return read_bytes(run_dir / _name(token), 1000) == token.encode()
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


def _name(token: str) -> str:
    return f"seen-{token}"
