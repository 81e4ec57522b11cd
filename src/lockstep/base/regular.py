"""Regular files and own directories: how everything in a run directory is opened that is written.

A run directory may come from somebody else, or hold what somebody else has put there. What is written is never written through
a symbolic link, and only into directories of this user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from pathlib import Path

from lockstep.base.errors import ConfigError

_ROOT = 0


def open_to_write(path: Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file that is to be written, whose path does not end in a symbolic link.

    Args:
        path: the file.
        flags: as for ``os.open``.
        mode: the permissions of a new file, less those of the umask.

    Raises:
        ConfigError: something else is there.
        OSError: it cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_plain(path.lstat(), path)  # before it is opened: opening a device may act on it
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            _check_plain(path.lstat(), path)
        raise
    try:
        _check_plain(os.fstat(fd), path)
    except ConfigError:
        os.close(fd)
        raise
    return fd


def _check_plain(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(
            f"{path} is {_kind(found)}, where a regular file is to be written: what it leads to would be overwritten. Remove "
            "it if you know how it came there, or use another directory (--run-dir, run_dir=)"
        )


def own_directory(path: Path, *, may_be_link: bool = False) -> None:
    """Make a directory, unless it is there, and check that it is this user's or root's: its owner can replace what it holds by
    links at any time.

    Args:
        path: the directory.
        may_be_link: whether a symbolic link to one is accepted, if it is this user's or root's, too.

    Raises:
        ConfigError: it is somebody else's, or not a directory.
        OSError: it cannot be made or read.
    """
    path.mkdir(parents=True, exist_ok=True)
    itself, target = path.lstat(), path.stat()
    if stat.S_ISLNK(itself.st_mode) and not may_be_link:
        raise ConfigError(
            f"{path} is a symbolic link, where a directory is to be written to: files elsewhere would be overwritten. Remove "
            "it if you know how it came there, or use another directory (--run-dir, run_dir=)"
        )
    for found, place in ((itself, path.parent), (target, path)):
        if found.st_uid not in (os.geteuid(), _ROOT) and found.st_uid != _owner_of_new(place):
            raise ConfigError(
                f"{path} belongs to {_user(found.st_uid)}, and this process is one of {_user(os.geteuid())}: the owner of a "
                "directory could redirect what is written there to any file of yours. Use a directory of your own; to "
                f"resume a run that is there, copy it: cp -r {path}/. COPY, then --run-dir COPY"
            )


def _owner_of_new(directory: Path) -> int | None:
    """The owner of a file made in a directory, which is not this user where a file system maps all users to one; None: none
    can be made."""
    probe = directory / f".owner-{os.urandom(8).hex()}"
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            probe.unlink()


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user id {number})"
    except KeyError:
        return f"user id {number}"


def _kind(found: os.stat_result) -> str:
    kinds = {
        stat.S_ISLNK: "a symbolic link",
        stat.S_ISDIR: "a directory",
        stat.S_ISFIFO: "a FIFO",
        stat.S_ISSOCK: "a socket",
    }
    return next((words for is_it, words in kinds.items() if is_it(found.st_mode)), "a device")
