"""How many files, and so connections, this process may have open."""

from __future__ import annotations

import resource

from lockstep.base.errors import ConfigError

_OTHERS = 256
"""Open files of a process beside its connections to other ranks."""


def allow_connections(number: int) -> None:
    """Raise this process's limit of open files to what so many connections need, if it is lower.

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
            f"this process needs {needed} open files, {number} of them for connections to other ranks, and may have {hard} "
            "(`ulimit -Hn`): raise the limit on every machine (`nofile` in /etc/security/limits.conf; LimitNOFILE= of a "
            "systemd unit; --ulimit nofile=65536 for a container), or start fewer processes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
