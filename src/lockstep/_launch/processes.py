"""Finding and ending the processes that workers leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path


def kill_worker(pid: int) -> None:
    """Kills a worker and its process group immediately; other processes that it started are left to
    ``sweep``."""
    # Also by itself, since a worker that has just been forked leads no group yet.
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    """The state of a process, in psutil's words; ``dead`` if it has exited, also if its parent has
    not reaped it yet.

    (A zombie may stay for good, in a container without an init process.)
    """
    import psutil  # only here: it would delay the start of every launch

    try:
        state = str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "dead"
    return "dead" if state == psutil.STATUS_ZOMBIE else state


def sweep(sessions: Collection[int], private_dir: str, timeout_s: float = 2.0, *, succeeded: bool = False) -> None:
    """Kills every process of these sessions, and every one with the launch's private directory in
    its environment.

    The second condition finds programs that were started in a separate session. If the launch
    went well, they were left on purpose, as a TensorBoard may be, and stay.

    Processes still there after ``timeout_s`` are blocked in the kernel, and cannot be ended.
    """
    deadline = time.monotonic() + timeout_s
    # Again until there are none: a process may have forked another one while it was being found.
    while pids := _find(sessions, None if succeeded else private_dir):
        if time.monotonic() > deadline:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _find(sessions: Collection[int], mark: str | None) -> list[int]:
    import psutil  # only here: it would delay the start of every launch

    pids = []
    for pid in set(psutil.pids()) - {os.getpid()}:
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            is_ours = os.getsid(pid) in sessions or (mark is not None and _is_marked(pid, mark))
            if is_ours and state_of(pid) != "dead":
                pids.append(pid)
    return pids


def _is_marked(pid: int, mark: str) -> bool:
    # This user's processes only: root could read those of all. Not by psutil, whose environ() ends
    # at an empty entry, and takes five times as long, for every process of the machine.
    is_own = os.stat(f"/proc/{pid}").st_uid == os.getuid()  # noqa: PTH116
    return is_own and mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
