"""A command with a time limit, after which all of its processes are ended, also in other
sessions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "GPU_STAGE_OF"
"""In the environment of all that a command starts, which the kernel keeps as it was when a process
began."""
GRACE_S = 5.0  # for what is on its way out when its command has ended
STACKS_S = 3.0  # for writing stacks
LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a command."""

    status: int | None
    """None: it ran into its limit."""
    seconds: float
    left_behind: tuple[str, ...]
    """Command lines of processes that were there after it, and were killed."""


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    log: Path,
    limit_s: float,
    watch: Callable[[float], None],
) -> Ended:
    """Run it to its end, or to its limit. ``watch`` is called every moment, with the seconds so
    far.

    At the limit, Python's processes write their stacks to the log before they die.
    """
    mark = uuid.uuid4().hex
    began = time.monotonic()
    marked = {**environ, MARK: mark, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=marked,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    timed_out = False
    try:
        while process.poll() is None and not timed_out:
            time.sleep(LOOK_S)
            seconds = time.monotonic() - began
            watch(seconds)
            timed_out = seconds > limit_s
        if timed_out:
            _signal(mark, signal.SIGABRT)
            _wait_for(lambda: not _processes(mark), STACKS_S)
        else:
            _wait_for(lambda: not _processes(mark), GRACE_S)
        left = () if timed_out else tuple(_processes(mark).values())
    finally:
        _end(process, mark)
    status = None if timed_out else process.returncode
    return Ended(status=status, seconds=time.monotonic() - began, left_behind=left)


def _processes(mark: str) -> dict[int, str]:
    """The command lines of the live processes that have the mark, by their number."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if wanted in (entry / "environ").read_bytes().split(b"\0"):  # a zombie has none
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
    return found


def _signal(mark: str, number: signal.Signals) -> None:
    for pid in _processes(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kills all of them, repeatedly, since one may be starting another, but only for 20 s: a
    process that is stuck in a driver cannot be killed."""
    deadline = time.monotonic() + 20.0
    while (process.poll() is None or _processes(mark)) and time.monotonic() < deadline:
        if process.poll() is None:
            process.kill()
        _signal(mark, signal.SIGKILL)
        time.sleep(0.05)
