"""Processes of unequal speed on one machine, each with a part of a core.

*quota*: each process is in a separate control group, as containers are (100 times a second); the
groups must be writable. *stops*: signals stop each process for the rest of the time, 100 times a
second, which needs no rights but is inexact on a busy machine. *competitor*: another program
computes on the core of the last process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep._world.machine.cores import ROOT, own_groups

WAYS = ("quota", "stops", "competitor")
_PERIOD_S = 0.01
FITS = 0.9
"""The share of a core that its processes get together where they need more than one: nothing
schedules without a loss."""


def best_way() -> str:
    """What this machine allows."""
    return "quota" if _parent_group() is not None else "stops"


@dataclass(frozen=True)
class Speeds:
    """How much of which core each process gets."""

    shares: Sequence[float]
    cores: Sequence[int]
    way: str

    @classmethod
    def choose(cls, nproc: int, way: str, most_of_core: float, *, equal: bool) -> Speeds:
        """The last process has half of the speed of the others, unless all are equal.
        ``most_of_core``: see ``balance.py``."""
        available = sorted(os.sched_getaffinity(0))
        cores = [available[rank % len(available)] for rank in range(nproc)]
        shares = [1.0] * nproc if equal else [1.0] * (nproc - 1) + [0.5]
        most = max(sum(share for share, at in zip(shares, cores, strict=True) if at == core) for core in cores)
        if way == "competitor" and (most > 1 or most_of_core < 1):
            raise SystemExit(f"--slow-by competitor needs a whole core for each of {nproc} processes: {best_way()} does not")
        return cls([share / most * min(most_of_core, FITS if most > 1 else 1.0) for share in shares], cores, way)

    @contextlib.contextmanager
    def imposed(self, pids: Sequence[int]) -> Iterator[None]:
        """Let the processes have their shares meanwhile."""
        slow = [(pid, share) for pid, share in zip(pids, self.shares, strict=True) if share < 1]
        with contextlib.ExitStack() as stack:
            if self.way == "competitor":
                stack.enter_context(_competitor(self.cores[-1]) if slow else contextlib.nullcontext())
            else:
                for pid, share in slow:
                    stack.enter_context((_quota if self.way == "quota" else _stops)(pid, share))
            yield


def pin(pid: int, core: int) -> None:
    """All threads that the process has."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})


def _parent_group() -> Path | None:
    """Where groups with a quota can be made."""
    for own in own_groups()[:1]:
        with contextlib.suppress(OSError):
            if "cpu" in (own / "cgroup.subtree_control").read_text().split() and os.access(own, os.W_OK):
                return own
    for own in own_groups(ROOT / "cpu", controller="cpu")[:1]:
        if (own / "cpu.cfs_quota_us").exists() and os.access(own, os.W_OK):
            return own
    return None


@contextlib.contextmanager
def _quota(pid: int, share: float) -> Iterator[None]:
    parent = _parent_group()
    if parent is None:
        raise SystemExit(f"--slow-by quota needs a control group in which others can be made: {best_way()} does not")
    group = parent / f"lockstep-benchmark-{pid}"
    group.mkdir()
    try:
        period_us = round(_PERIOD_S * 1e6)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{round(share * period_us)} {period_us}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(round(share * period_us)))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(OSError):  # it has ended
            (parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@contextlib.contextmanager
def _stops(pid: int, share: float) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            time.sleep(_PERIOD_S * share)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_PERIOD_S * (1 - share))
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _competitor(core: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        pin(process.pid, core)
        yield
    finally:
        process.kill()
        process.wait()
