"""How a run directory is written to: what is below it is never reached through a symbolic link.

A run that was copied or unpacked, or whose directory others can write to, would else lead to files
of whoever resumes it. The run directory itself, and what is above it, may be links: the user has
named them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep._base.errors import UnfitFileError
from lockstep._base.regular_files import kind_of

# With O_PATH (not on macOS), a directory that may be entered need not be readable.
_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_ROOT = 0


def check_named(path: Path) -> None:
    """Check a path that is about to be used as a run directory, or as the directory of several.

    Raises:
        OSError: it is a symbolic link that another user has made, to what is not that user's; or no
            directory.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        is_link, is_directory = stat.S_ISLNK(found.st_mode), path.is_dir()
        if not is_directory:
            what = "a symbolic link that leads to no directory" if is_link else f"{kind_of(found)}, and must be a directory"
            raise UnfitFileError(errno.ENOTDIR, f"it is {what}", str(path))
        if is_link and found.st_uid not in (os.geteuid(), _ROOT, path.stat().st_uid):
            why = f"it is a symbolic link of another user (user id {found.st_uid}), who could lead it to any directory of yours"
            raise UnfitFileError(errno.EPERM, why, str(path))


def open_to_write(path: Path, flags: int, mode: int = 0o666, *, within: Path | None = None) -> int:
    """A descriptor of a regular file that is to be written.

    Args:
        path: the file, which must not be a symbolic link.
        flags: as for ``os.open``.
        mode: the permissions of a new file, less those of the umask.
        within: a directory above it, below which no directory may be a symbolic link. None: its own
            directory.

    Raises:
        OSError: it cannot be opened, or something else is there.
    """
    with directory(path.parent, within=within or path.parent) as parent:
        return open_in(parent, path, flags, mode)


def open_in(parent: int, path: Path, flags: int, mode: int) -> int:
    """The same, in a directory of which ``parent`` is a descriptor: only the name in ``path``
    counts."""
    with _naming(path), contextlib.suppress(FileNotFoundError):
        # opening a device may act on it
        _check_plain(os.stat(path.name, dir_fd=parent, follow_symlinks=False), path)
    with _naming(path):
        fd = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=parent)
    try:
        _check_plain(os.fstat(fd), path)  # it may have been replaced meanwhile
        os.set_blocking(fd, True)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def directory(path: Path, *, within: Path, make: bool = False) -> Iterator[int]:
    """A context with a descriptor of a directory, for functions that take ``dir_fd``.

    Args:
        path: the directory.
        within: a directory above it, or itself. Below, no part of the path may be a symbolic link.
        make: make what is missing below.

    Raises:
        OSError: it is not there, or something else is.
    """
    fd, reached = os.open(within, _DIRECTORY), within
    try:
        for name in path.relative_to(within).parts:
            reached /= name
            if make:
                with _naming(reached), contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
            below = _enter(fd, name, reached)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _enter(parent: int, name: str, path: Path) -> int:
    with _naming(path):
        try:
            return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        except NotADirectoryError as error:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                raise _through_link(path) from error
            raise UnfitFileError(errno.ENOTDIR, f"it is {kind_of(found)}, and must be a directory", str(path)) from error


def make_directory(path: Path, *, within: Path) -> None:
    """Make a directory and what is missing above it. Below ``within`` no part of its path may be a
    symbolic link.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    within.mkdir(parents=True, exist_ok=True)
    with directory(path, within=within, make=True):
        pass


def rename(old: Path, new: Path, *, within: Path) -> None:
    """Rename a file or directory, as ``os.replace`` does, reaching neither through a symbolic link
    below ``within``.

    Raises:
        OSError: it failed.
    """
    with directory(old.parent, within=within) as source, directory(new.parent, within=within) as target:
        os.replace(old.name, new.name, src_dir_fd=source, dst_dir_fd=target)


def remove(path: Path, *, within: Path) -> None:
    """Delete a file, a directory with all that it contains, or a symbolic link, as far as possible.
    Nothing is reached through a symbolic link below ``within``."""
    with contextlib.suppress(OSError), directory(path.parent, within=within) as parent:
        if stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(path.name, ignore_errors=True, dir_fd=parent)
        else:
            os.unlink(path.name, dir_fd=parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors name the path, of which the system was given the last part alone."""
    try:
        yield
    except UnfitFileError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:  # it became a link meanwhile
            raise _through_link(path) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _check_plain(found: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _through_link(path)
    if not stat.S_ISREG(found.st_mode):
        raise UnfitFileError(errno.EINVAL, f"it is {kind_of(found)}, and must be a regular file", str(path))


def _through_link(path: Path) -> UnfitFileError:
    why = "it is a symbolic link, through which nothing is written: replace it by what it leads to (a run directory may be one)"
    return UnfitFileError(errno.EPERM, why, str(path))
