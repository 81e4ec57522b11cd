"""Finding and ending whatever the workers left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from lockstep.stopping import ignores


def kill_worker(pid: int) -> None:
    """SIGKILL to a worker and its process group, at once; what else it started is for ``sweep``."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def is_held(pid: int) -> bool:
    """Whether the kernel holds a process, in a system call that nothing interrupts."""
    import psutil  # only here: it would delay the start of every launch

    with contextlib.suppress(OSError, psutil.Error):  # it has ended
        return bool(psutil.Process(pid).status() == psutil.STATUS_DISK_SLEEP)
    return False


def sweep(sessions: Collection[int], private_dir: str, timeout_s: float = 2.0, *, went_well: bool = False) -> None:
    """Kill every process of these sessions, or with the launch's private directory in its environment.

    The second finds programs that were started in a session of their own. Where the launch went well, those were left on
    purpose, as a TensorBoard may be, and stay; so do those started with ``nohup``.

    Those still there after ``timeout_s`` are held by the kernel itself: there is nothing more to be done to them.
    """
    deadline = time.monotonic() + timeout_s
    while pids := _find_strays(sessions) if went_well else _find(sessions, private_dir):
        if time.monotonic() > deadline:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _find_strays(sessions: Collection[int]) -> list[int]:
    pids = _find(sessions, None)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return pids  # the launcher was started with nohup itself, and all its processes have that from it
    return [pid for pid in pids if not ignores(pid, signal.SIGHUP)]


def _find(sessions: Collection[int], mark: str | None) -> list[int]:
    import psutil  # only here: it would delay the start of every launch

    pids = []
    for pid in set(psutil.pids()) - {os.getpid()}:
        with contextlib.suppress(OSError, psutil.Error):  # it has ended, or is somebody else's
            is_ours = os.getsid(pid) in sessions or (mark is not None and _is_marked(pid, mark))
            if is_ours and psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                pids.append(pid)
    return pids


def _is_marked(pid: int, mark: str) -> bool:
    # This user's processes only: root could read those of all. By hand, for psutil's environ() ends at an empty entry, and
    # takes five times as long, for every process of the machine.
    is_own = os.stat(f"/proc/{pid}").st_uid == os.getuid()  # noqa: PTH116
    return is_own and mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
