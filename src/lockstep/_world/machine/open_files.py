"""How many files, and so connections, this process may have open."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from lockstep._base.errors import ConfigError

_NUM_SPARE = 4
"""Files that are open at the same time while an error is reported, also by other threads."""
_OTHERS = 256
"""Open files of a process in addition to its connections to other ranks."""


def allow_connections(number: int) -> None:
    """Raises this process's limit of open files to what so many connections need, if it is lower.

    No further: programs that call ``select`` fail on files with a number of 1,024 or more.

    Raises:
        ConfigError: the administrator's limit is lower than that.
    """
    needed = number + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"this process needs {needed} open files, {number} of them for connections to other "
            f"ranks, but the limit is {hard} (`ulimit -Hn`). Raise the limit on every machine "
            "(`nofile` in /etc/security/limits.conf; LimitNOFILE= of a systemd unit; --ulimit "
            "nofile=65536 for a container), or start fewer processes",
            code="open-files-limit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


_spare: list[int] = []


def hold_spare() -> None:
    """Keeps a few descriptors for ``free_spare``. May be called again."""
    with contextlib.suppress(OSError):
        while len(_spare) < _NUM_SPARE:
            _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def free_spare() -> None:
    """Lets go of them: this process fails, perhaps because it has no descriptors left, and what it
    reports of that reads lines of source, writes its black box and imports modules."""
    while _spare:
        fd = _spare.pop()
        with contextlib.suppress(OSError):  # the script has closed all of its files
            # It may have opened others since, with these numbers: only what is still /dev/null is
            # closed.
            if os.fstat(fd).st_rdev == Path(os.devnull).stat().st_rdev:
                os.close(fd)
