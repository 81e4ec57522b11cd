"""The lock of a run directory, which admits one launch at a time and is released when its holder
ends."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from pathlib import Path

from lockstep._base.errors import ConfigError
from lockstep._base.escape_control import escape_control
from lockstep._base.nofollow import open_to_write
from lockstep._base.regular_files import open_to_read, read_bytes

_FILE_NAME = "lock"
_MOST_BYTES = 4096
PATIENCE_S = 1.0
"""Seconds that a launch waits: a process that checks whether a run is active holds the lock
briefly."""
_TELL_AFTER_S = 1.0


class RunLock:
    """The lock of a run directory, held by rank 0 of the active launch for the life of the process.

    A POSIX lock (``lockf``): the kernel releases it when the process ends, however that happens;
    forked processes do not inherit it; and it works over NFS. (It is lost when the process closes
    any descriptor of the file, so the holder must not open the file again.)

    Args:
        patience_s: seconds to wait for the current holder. A message is printed after the first
            second.
        far_patience_s: the same, for a holder on another host, which may be lost without the file
            server having noticed.

    Raises:
        ConfigError: another process holds it; the message names it.
    """

    def __init__(
        self,
        run_dir: Path,
        launch: str = "",
        job: str = "",
        patience_s: float = PATIENCE_S,
        far_patience_s: float | None = None,
    ) -> None:
        began, has_printed = time.monotonic(), False
        while True:
            self._fd = open_to_write(run_dir / _FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
            if _try(self._fd) and _is_at(self._fd, run_dir / _FILE_NAME):
                break
            holder = _holder(self._fd)
            os.close(self._fd)
            host = _other_host(holder)
            lost = f"If {host} was lost, that lasts until the file server has noticed" if host else ""
            limit_s = far_patience_s if host and far_patience_s is not None else patience_s
            waited_s = time.monotonic() - began
            if waited_s >= limit_s:
                raise ConfigError(
                    f"the run directory {run_dir} is in use by {holder}: two launches in one directory would overwrite each "
                    "other's checkpoints. Wait for that one to end, or give another directory with --run-dir (run_dir=)."
                    + (f" {lost}: then --run-dir {run_dir} resumes that run." if host else "")
                )
            if waited_s > _TELL_AFTER_S and not has_printed:
                has_printed = True
                waiting = f"lockstep: waiting for the run directory {run_dir}, in use by {holder}, for up to {limit_s:.0f} s"
                print(escape_control(f"{waiting}. {lost}" if host else waiting), file=sys.stderr, flush=True)
            time.sleep(0.05)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n{launch}\n{job}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holder_of(run_dir: Path) -> str | None:
    """A description of the process that holds the lock; None: none does. Must not be called by the
    holder."""
    try:
        with open_to_read(run_dir / _FILE_NAME) as file:
            # A shared lock needs no write permission, and concurrent checks do not mistake each
            # other for the holder.
            return None if _try(file.fileno(), fcntl.LOCK_SH) else _holder(file.fileno())
    except OSError:  # there is no lock file, or it is not readable by this user
        return None


def _try(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
            return True  # a file system without locks: run without one
        raise
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is still at this path: its directory may have been renamed meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    lines = os.pread(fd, _MOST_BYTES, 0).decode(errors="replace").splitlines()
    return lines[0] if lines else "another process"


def _other_host(holder: str) -> str:
    """The host of the holder of a lock, if it is not this one; else empty."""
    _, _, host = holder.rpartition(" on ")
    return "" if host == socket.gethostname() else host


def last_launch(run_dir: Path) -> str:
    """The name of the launch that last held the lock; empty: none. Must not be called by the
    holder."""
    return _line(run_dir, 1)


def last_job(run_dir: Path) -> str:
    """The name of the job (see ``Job.name``) that last held the lock; empty: none. Must not be
    called by the holder."""
    return _line(run_dir, 2)


def _line(run_dir: Path, number: int) -> str:
    try:
        lines = read_bytes(run_dir / _FILE_NAME, _MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[number] if len(lines) > number else ""
