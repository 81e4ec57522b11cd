"""Finding and ending the processes that workers leave behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Collection
from pathlib import Path

from lockstep.base.stopping import ignores

_MOST_OF_COMMAND = 80


def kill_worker(pid: int) -> None:
    """Kill a worker and its process group at once; other processes that it started are left to ``sweep``."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    """The state of a process, in psutil's words; ``dead`` if it has ended, also if its parent has not reaped it yet.

    (A zombie may stay for good, in a container without an init process.)
    """
    import psutil  # only here: it would delay the start of every launch

    try:
        state = str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "dead"
    return "dead" if state == psutil.STATUS_ZOMBIE else state


def is_held(pid: int) -> bool:
    """Whether a process is in a system call that nothing interrupts, not even SIGKILL."""
    return state_of(pid) == "disk-sleep"


def holders_of_pipes(fds: Collection[int]) -> list[tuple[int, str]]:
    """The other processes of this user that have one of these pipes open: their ids and commands.

    ``fds``: descriptors of this process.
    """
    found, ends = [], {f"pipe:[{os.fstat(fd).st_ino}]" for fd in fds}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            is_other = int(directory.name) != os.getpid()
            if is_other and any(str(link.readlink()) in ends for link in (directory / "fd").iterdir()):
                command = (directory / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
                found.append((int(directory.name), shlex.join(command)[:_MOST_OF_COMMAND]))
    return found


def sweep(sessions: Collection[int], private_dir: str, timeout_s: float = 2.0, *, succeeded: bool = False) -> None:
    """Kill every process of these sessions, and every one with the launch's private directory in its environment.

    The second condition finds programs that were started in a session of their own. If the launch went well, they were left
    on purpose, as a TensorBoard may be, and stay; so do those started with ``nohup``.

    Processes still there after ``timeout_s`` are held by the kernel, and cannot be ended.
    """
    deadline = time.monotonic() + timeout_s
    while pids := _find_strays(sessions) if succeeded else _find(sessions, private_dir):
        if time.monotonic() > deadline:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _find_strays(sessions: Collection[int]) -> list[int]:
    pids = _find(sessions, None)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return pids  # the launcher itself was started with nohup, and all its processes inherit that
    return [pid for pid in pids if not ignores(pid, signal.SIGHUP)]


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
    # This user's processes only: root could read those of all. Not by psutil, whose environ() ends at an empty entry, and takes
    # five times as long, for every process of the machine.
    is_own = os.stat(f"/proc/{pid}").st_uid == os.getuid()  # noqa: PTH116
    return is_own and mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
