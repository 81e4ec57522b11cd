"""Finding and ending whatever the workers left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path


def kill_worker(pid: int) -> None:
    """SIGKILL to a worker and its process group, at once; what else it started is for ``sweep``."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def sweep(sessions: Collection[int], private_dir: str, timeout_s: float = 2.0, *, went_well: bool = False) -> list[int]:
    """Kill every process of these sessions, or with the launch's private directory in its environment.

    The second finds programs that were started in a session of their own. Where the launch went well, those were left on
    purpose, as a TensorBoard may be, and stay; so do those started with ``nohup``.

    Returns those still there after ``timeout_s`` (processes that the kernel itself holds; there is nothing more to be done
    to them).
    """
    deadline = time.monotonic() + timeout_s
    while found := _find_strays(sessions) if went_well else _find(sessions, private_dir.encode()):
        if time.monotonic() > deadline:
            return found
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return []


def _find_strays(sessions: Collection[int]) -> list[int]:
    found = _find(sessions, None)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return found  # the launcher was started with nohup itself, and all its processes have that from it
    return [pid for pid in found if not _ignores_hangup(pid)]


def _find(sessions: Collection[int], mark: bytes | None) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if os.getsid(pid) in sessions or (
                mark is not None and entry.stat().st_uid == os.getuid() and mark in _environ(pid)
            ):
                state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in "ZX":  # dead already, only not collected
                    found.append(pid)
    return found


def _ignores_hangup(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            name, _, mask = line.partition(":")
            if name == "SigIgn":
                return bool(int(mask, 16) >> (signal.SIGHUP - 1) & 1)
    return False


def _environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
