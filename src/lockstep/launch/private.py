"""The private directory of a launch, and removal of those left by launchers that were killed with SIGKILL."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.launch.processes import state_of

_PREFIX = "lockstep-"
_LOCK = "launcher.lock"
"""Locked by a launcher as long as it lives; contains its host and process id. Directories without it are never removed."""


@contextmanager
def private_directory() -> Iterator[str]:
    """A context with a new directory that only this user can enter, removed at the end.

    A launcher that is killed cannot remove its directory, so this also removes those that earlier ones of this user left.
    """
    remove_abandoned(tempfile.gettempdir())
    path = tempfile.mkdtemp(prefix=_PREFIX)
    try:
        with _held(path):
            yield path
    finally:
        _remove(Path(path))


def live_launches() -> dict[int, Path]:
    """The private directories of this user's live launchers on this machine, by process id."""
    directories = {}
    for path in _private_directories(tempfile.gettempdir()):
        with contextlib.suppress(OSError, ValueError):
            host, pid = (path / _LOCK).read_text().split()
            if host == socket.gethostname() and state_of(int(pid)) != "dead":
                directories[int(pid)] = path
    return directories


def remove_abandoned(parent: str) -> None:
    """Remove the private directories in ``parent`` whose launcher has ended, as far as possible."""
    for path in _private_directories(parent):
        with contextlib.suppress(OSError):  # gone meanwhile, without a lock file, or its lock is held
            _remove_if_abandoned(path)


def _private_directories(parent: str) -> Iterator[Path]:
    """The directories of this user that are named like private directories."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):  # gone meanwhile
                    is_own = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                    if is_own and entry.is_dir(follow_symlinks=False):
                        yield Path(entry.path)


def _remove_if_abandoned(path: Path) -> None:
    fd = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        host, _, pid = os.read(fd, 1000).decode(errors="replace").partition("\n")
        # On a network file system, locks may not reach other hosts, nor distinguish two threads of one process.
        if host != socket.gethostname() or pid == str(os.getpid()):
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), (path / _LOCK).lstat()):  # else another launch was quicker
            _remove(path)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    """Remove a directory, its lock file last: if this is interrupted, the next launch removes the rest."""
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK:
                entry.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _held(path: str) -> Iterator[None]:
    """A context in which a directory is marked as in use, also to the end of this process.

    The file is locked before it is renamed, so a live launcher's lock file is never seen unlocked. (By flock: a lock by lockf
    is lost as soon as this process closes *any* descriptor of the file.)
    """
    partial = Path(path, f"{_LOCK}.partial")
    fd = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.write(fd, f"{socket.gethostname()}\n{os.getpid()}".encode())
        with contextlib.suppress(OSError):  # a file system without locks: then the directory never counts as abandoned
            fcntl.flock(fd, fcntl.LOCK_EX)
            partial.rename(Path(path, _LOCK))
        yield
    finally:
        os.close(fd)
