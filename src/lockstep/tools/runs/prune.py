"""``lockstep runs --prune``: choosing and deleting old runs."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lockstep.base.errors import ConfigError
from lockstep.state.rundir.lock import RunLock
from lockstep.tools.runs.inventory import FAILED, FINISHED, INTERRUPTED, Run, read_run

_AGE = re.compile(r"(\d+)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_age(text: str) -> float:
    """Parse a time such as ``90s``, ``30m``, ``12h``, ``7d``; returns seconds.

    Raises:
        ConfigError: it has another form.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--older-than {text}: give a number followed by s, m, h or d: 12h, 7d")
    return float(int(match[1]) * _UNITS_S[match[2]])


def choose(runs: Sequence[Run], *, older_than_s: float, keep: int, now_s: float) -> list[Run]:
    """The runs to delete: those that can no longer be resumed, but for the newest of each script. Pure: it reads no files.

    A finished run stays while there is an interrupted one of the same command, which that command would resume in its place.

    Args:
        runs: of a directory.
        older_than_s: for how long they must have been idle, in seconds.
        keep: how many of the newest of each script stay.
        now_s: seconds since 1970.
    """
    resumed = {(run.script, run.args) for run in runs if run.state == INTERRUPTED}
    seen: Counter[str | None] = Counter()
    chosen = []
    for run in sorted(runs, key=lambda run: -run.active_s):
        seen[run.script] += 1
        is_over = run.state == FAILED or (run.state == FINISHED and (run.script, run.args) not in resumed)
        if is_over and seen[run.script] > keep and now_s - run.active_s >= older_than_s:
            chosen.append(run)
    return chosen[::-1]


def num_bytes(path: Path) -> int:
    """Disk usage of a directory, in bytes; a file with several names counts once."""
    files = [file.lstat() for file in path.rglob("*")]
    return sum({status.st_ino: status.st_blocks * 512 for status in files}.values())


def delete(run: Run) -> str:
    """Delete a run, unless there was activity since it was read. Returns why not; empty: it is deleted."""
    if run.path.is_symlink():
        return "it is a link"
    if read_run(run.path).active_s > run.active_s:
        return "there was activity in it meanwhile"
    try:
        lock = RunLock(run.path, patience_s=0.0)
    except ConfigError as error:
        return str(error)
    try:
        shutil.rmtree(run.path)
    except OSError as error:
        return f"it cannot be deleted: {error}"
    finally:
        lock.release()
    return ""
