"""The lock of a run directory, which admits one launch at a time. The kernel releases it when the
process of its holder exits, also after SIGKILL.

Without it, two launches in one directory (a requeued job, and the old one that has not exited yet)
would overwrite each other's checkpoints.
"""

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
"""The number of seconds that a launch waits. A process that checks whether a run is active holds
the lock briefly."""
_PRINT_AFTER_S = 1.0


class RunLock:
    """The lock of a run directory, which rank 0 of the active launch keeps until its process exits.

    It is a POSIX lock (``lockf``). The kernel releases it when the process exits for any reason.
    Forked processes do not inherit it, and it works over NFS. (It is lost when the process closes
    any descriptor of the file, so the holder must not open the file again.)

    Args:
        patience_s: the number of seconds to wait for the current holder. A message is printed after
            the first second.
        far_patience_s: the number of seconds to wait for a holder on another host. That host may
            have failed before the file server noticed.

    Raises:
        ConfigError: another process holds the lock. The message contains its process id and host.
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
            # The directory may have been renamed (--fresh) between open and lock: then this is the
            # lock of the old run.
            if _try(self._fd) and _is_at(self._fd, run_dir / _FILE_NAME):
                break
            holder = _holder(self._fd)
            os.close(self._fd)
            host = _other_host(holder)
            lost = f"If {host} failed, the lock lasts until the file server notices" if host else ""
            limit_s = far_patience_s if host and far_patience_s is not None else patience_s
            waited_s = time.monotonic() - began
            if waited_s >= limit_s:
                raise ConfigError(
                    f"the run directory {run_dir} is in use by {holder}. Wait until that launch exits, or use another "
                    "directory with --run-dir (run_dir=)."
                    + (f" {lost}; then --run-dir {run_dir} resumes the run." if host else ""),
                    code="run-dir-in-use",
                )
            if waited_s > _PRINT_AFTER_S and not has_printed:
                has_printed = True
                waiting = f"lockstep: waiting for the run directory {run_dir}, in use by {holder}, for up to {limit_s:.0f} s"
                print(escape_control(f"{waiting}. {lost}" if host else waiting), file=sys.stderr, flush=True)
            time.sleep(0.05)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n{launch}\n{job}\n".encode(), 0)

    def release(self) -> None:
        """Releases the lock. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holder_of(run_dir: Path) -> str | None:
    """Returns a description of the process that holds the lock; None: it is free. Must not
    be called by the holder."""
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
    """Returns whether an open file is still at this path. Its directory may have been renamed."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    lines = os.pread(fd, _MOST_BYTES, 0).decode(errors="replace").splitlines()
    return lines[0] if lines else "another process"


def _other_host(holder: str) -> str:
    """Returns the host of the holder of a lock; empty: it is this host."""
    _, _, host = holder.rpartition(" on ")
    return "" if host == socket.gethostname() else host


def last_launch(run_dir: Path) -> str:
    """Returns the name of the launch that last held the lock; empty: none. Must not be called by
    the current holder of the lock, since closing the file releases it."""
    return _line(run_dir, 1)


def last_job(run_dir: Path) -> str:
    """Returns the name of the job (see ``Job.name``) that last held the lock; empty: none. Must not
    be called by the current holder of the lock."""
    return _line(run_dir, 2)


def _line(run_dir: Path, number: int) -> str:
    try:
        lines = read_bytes(run_dir / _FILE_NAME, _MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[number] if len(lines) > number else ""
