"""One launch at a time in a run's directory: a lock that dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from pathlib import Path

from lockstep.errors import ConfigError

_FILE_NAME = "lock"
PATIENCE_S = 1.0
"""How long a launch tries: one that looks whether a run is alive holds the lock for a moment."""
_TELL_AFTER_S = 1.0


class RunLock:
    """Held by rank 0 of the launch that runs in a directory, as long as that process lives.

    A lock of the POSIX kind (``lockf``): the kernel frees it when the process ends, however that comes about; processes that
    it has forked do not inherit it; and it works over NFS. (It is lost when the process closes the file, however often it
    has opened it: so the holder must not look into it.)

    Args:
        run_dir: where.
        launch: the name of this launch.
        job: and of its job.
        patience_s: how many seconds to wait for who has it. Whoever waits for longer than a moment says so.
        far_patience_s: the same, if that is on another host: one that was lost has the lock until the file server notices.

    Raises:
        ConfigError: another process holds it; the message says which.
    """

    def __init__(
        self,
        run_dir: Path,
        launch: str = "",
        job: str = "",
        patience_s: float = PATIENCE_S,
        far_patience_s: float | None = None,
    ) -> None:
        began, has_told = time.monotonic(), False
        while True:
            self._fd = os.open(run_dir / _FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
            if waited_s > _TELL_AFTER_S and not has_told:
                has_told = True
                why = f"lockstep: waits for the run directory {run_dir}, in use by {holder}, for {limit_s:.0f} s at most"
                print(f"{why}. {lost}" if host else why, file=sys.stderr, flush=True)
            time.sleep(0.05)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n{launch}\n{job}\n".encode(), 0)

    def release(self) -> None:
        """Let others in. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holder_of(run_dir: Path) -> str | None:
    """Who runs in a directory, in words; None: nobody. (Not for the process that holds it.)"""
    try:
        fd = os.open(run_dir / _FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no lock was ever taken there, or it is not ours to look at
        return None
    try:
        # A shared lock: it needs no right to write, and two that look do not take each other for the holder.
        return None if _try(fd, fcntl.LOCK_SH) else _holder(fd)
    finally:
        os.close(fd)


def _try(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
            return True  # a file system without locks: better a run without one than none
        raise
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is still the one of this name: its directory may have been set aside meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    lines = os.pread(fd, 1000, 0).decode(errors="replace").splitlines()
    return lines[0] if lines else "another process"


def _other_host(holder: str) -> str:
    """The host of who holds a lock, if that is not this one."""
    _, _, host = holder.rpartition(" on ")
    return "" if host == socket.gethostname() else host


def last_launch(run_dir: Path) -> str:
    """The name of the launch that held the lock last; empty: it had none. (Not for the process that holds it.)"""
    return _line(run_dir, 1)


def last_job(run_dir: Path) -> str:
    """The name of the job (see ``Job.name``) that held the lock last; empty: it was none. (Not for who holds it.)"""
    return _line(run_dir, 2)


def _line(run_dir: Path, number: int) -> str:
    try:
        lines = (run_dir / _FILE_NAME).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[number] if len(lines) > number else ""
