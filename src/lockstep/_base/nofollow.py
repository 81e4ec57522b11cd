"""Opens files of a run directory for writing, without following symbolic links below it.

Why: a run may have been copied or unpacked, or other users may be able to write to its directory. A
link in it could lead to any file of the user who resumes the run. The run directory and its parents
may be links, because the user has named them."""

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
    """Checks a path before it is used as a run directory, or as the directory of several runs.

    Raises:
        OSError: it is a symbolic link of another user to a directory that is not that user's; or it
            is not a directory.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        is_link, is_directory = stat.S_ISLNK(found.st_mode), path.is_dir()
        if not is_directory:
            what = "a symbolic link that leads to no directory" if is_link else f"{kind_of(found)}, and must be a directory"
            raise UnfitFileError(errno.ENOTDIR, f"it is {what}", str(path))
        # The owner of the directory can change its contents anyway, and root everything. Any other
        # user cannot write there, but could have this run write there by a link.
        if is_link and found.st_uid not in (os.geteuid(), _ROOT, path.stat().st_uid):
            why = f"it is a symbolic link of another user (user id {found.st_uid}), who could point it to your directories"
            raise UnfitFileError(errno.EPERM, why, str(path))


def open_to_write(path: Path, flags: int, mode: int = 0o666, *, within: Path | None = None) -> int:
    """Opens a regular file for writing, and returns its descriptor.

    Args:
        path: the file, which must not be a symbolic link.
        flags: as for ``os.open``.
        mode: the permissions of a new file, before the umask.
        within: a parent directory, below which no directory may be a symbolic link. None: the
            file's directory.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    with directory(path.parent, within=within or path.parent) as parent:
        return open_in(parent, path, flags, mode)


def open_in(parent: int, path: Path, flags: int, mode: int) -> int:
    """Like ``open_to_write``, in a directory with the descriptor ``parent``: only the name in
    ``path`` is used."""
    with _naming(path), contextlib.suppress(FileNotFoundError):
        # First, because opening a device may have side effects.
        _check_plain(os.stat(path.name, dir_fd=parent, follow_symlinks=False), path)
    with _naming(path):
        # O_NONBLOCK: a FIFO that was put there after the check would block until it has a reader.
        # So it is refused, by the system or below.
        fd = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=parent)
    try:
        _check_plain(os.fstat(fd), path)  # again, because it may have been replaced
        os.set_blocking(fd, True)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def directory(path: Path, *, within: Path, make: bool = False) -> Iterator[int]:
    """Yields the descriptor of a directory, for functions that take ``dir_fd``.

    Args:
        path: the directory.
        within: a parent directory, or the directory itself. Below it, no part of the path may be a
            symbolic link.
        make: whether to create missing directories below it.

    Raises:
        OSError: it is missing, or is not a directory.
    """
    fd, reached = os.open(within, _DIRECTORY), within
    try:
        # One name at a time, each from the open directory above it: if a path is checked first and
        # then used as a whole, a directory in it can be replaced by a link in between.
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
    """Makes errors name the whole path, of which the system was passed only the last part."""
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
    why = (
        "it is a symbolic link, and lockstep does not write through links. Replace it with its target (only a run directory "
        "itself may be a link)"
    )
    return UnfitFileError(errno.EPERM, why, str(path))
