"""The private directory of a launch, and removal of those left by launchers that were killed with
SIGKILL.

Its name shows whose it is: by the launcher's process id, and where that is valid.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep._base.errors import ConfigError
from lockstep._launch.processes import state_of

_NAME = re.compile(r"lockstep-([0-9a-f]{8})-(\d{1,10})-\w+")


@contextmanager
def private_directory() -> Iterator[str]:
    """A context with a new directory that only this user can enter, removed at the end.

    A launcher that is killed cannot remove its directory, so this also removes directories that
    earlier ones of this user left.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        remove_abandoned(tempfile.gettempdir())
        path = tempfile.mkdtemp(prefix=f"lockstep-{_processes_here()}-{os.getpid()}-")
    except OSError as error:  # it names the directories that were tried
        raise ConfigError(
            f"cannot create a directory for this launch: {error}. Set TMPDIR to a directory that you can write to",
            code="no-private-directory",
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def live_launches() -> dict[int, Path]:
    """The private directories of this user's live launchers on this machine, by process id."""
    return {pid: path for pid, path in _launches(tempfile.gettempdir()) if state_of(pid) != "dead"}


def remove_abandoned(parent: str) -> None:
    """Removes the private directories in ``parent`` whose launcher has exited, as far as
    possible."""
    for pid, path in _launches(parent):
        if state_of(pid) == "dead":
            shutil.rmtree(path, ignore_errors=True)


def _launches(parent: str) -> Iterator[tuple[int, Path]]:
    """The private directories of this user's launchers on this machine, and their process ids."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            named = _NAME.fullmatch(entry.name)
            if named is not None and named[1] == _processes_here():
                with contextlib.suppress(OSError):  # gone meanwhile
                    # The parent is usually /tmp, where another user may put a directory, or a link
                    # to one, under such a name.
                    is_own = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                    if is_own and entry.is_dir(follow_symlinks=False):
                        yield int(named[2]), Path(entry.path)


def _processes_here() -> str:
    """Eight digits that are the same where a process id means the same process: on this host, in
    this PID namespace. (Hosts and containers may share the directory.)"""
    namespace = ""
    with contextlib.suppress(OSError):  # not Linux
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no path
    return f"{zlib.crc32(f'{socket.gethostname()}/{namespace}'.encode()):08x}"
