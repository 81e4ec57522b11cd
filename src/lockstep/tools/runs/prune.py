"""``lockstep runs --prune``: choosing and deleting old runs."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.base.errors import ConfigError
from lockstep.state.rundir.lock import RunLock
from lockstep.tools.runs import inventory
from lockstep.tools.runs.inventory import FAILED, FINISHED, INTERRUPTED, RUNNING, UNREADABLE, Run
from lockstep.world.machine.sizes import counted

RESULTS = "results.json"
_RESULTS_DIR = re.compile(r"(verification|comparison)(-\d+)?")
_BETWEEN_ROWS_S = 900.0
"""Between two of its runs, a verification or comparison holds no lock: for so long after the last activity it is kept."""
_AGE = re.compile(r"(\d+)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WOULD_RESUME = "finished, but kept beside an interrupted run of the same command, which that command would resume"
_REMOVED = ".removed-"
"""Prefix of the name of a directory that is being deleted. (Names of runs do not begin with a dot.)"""


@dataclass(frozen=True, kw_only=True)
class Results:
    """A directory created by ``lockstep verify`` or ``lockstep compare``."""

    path: Path
    kind: str
    num_runs: int
    active_s: float
    """Time of the last activity, in seconds since 1970."""
    is_running: bool


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which runs to delete."""

    older_than_s: float
    keep: int
    """Number of newest runs of each script, and of newest results of each kind, to keep."""
    interrupted: bool
    """Whether to delete runs that could be resumed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to delete, and what to keep, with the reason."""

    deleted: tuple[Run | Results, ...]
    kept: tuple[tuple[Run | Results, str], ...]

    def reasons(self) -> dict[str, int]:
        """Number of kept entries for each reason, the most frequent first."""
        return dict(Counter(reason for _, reason in self.kept).most_common())


def read_age(text: str) -> float:
    """Parse a time such as ``90s``, ``30m``, ``12h``, ``7d``; returns seconds.

    Raises:
        ConfigError: it has another form.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--older-than {text}: give a number followed by s, m, h or d: 12h, 7d")
    return float(int(match[1]) * _UNITS_S[match[2]])


def find_results(directory: Path) -> list[Results]:
    """The verifications and comparisons in a directory, the most recently active one last."""
    results = []
    for path in sorted(directory.iterdir()):
        match = _RESULTS_DIR.fullmatch(path.name)
        if match is None or path.is_symlink() or not (path / RESULTS).is_file():
            continue
        runs = inventory.read_runs(path / "runs")[0] if (path / "runs").is_dir() else []
        times = [(path / RESULTS).stat().st_mtime, *(run.active_s for run in runs)]
        is_running = any(run.state == RUNNING for run in runs)
        results.append(Results(path=path, kind=match[1], num_runs=len(runs), active_s=max(times), is_running=is_running))
    return sorted(results, key=lambda result: result.active_s)


def plan(runs: Sequence[Run], results: Sequence[Results], rule: Rule, now_s: float) -> Plan:
    """Choose the runs and results to delete. Pure: it reads no files.

    Never deleted are those that are running or unreadable (they may be of another version), nor a finished run while an
    interrupted one of the same command is kept: the command would resume that one.
    """
    everything: list[Run | Results] = [*runs, *results]
    newest: dict[str | None, list[Run | Results]] = defaultdict(list)
    for entry in sorted(everything, key=lambda entry: -entry.active_s):
        newest[entry.kind if isinstance(entry, Results) else entry.script].append(entry)
    newest_ids = {id(entry) for group in newest.values() for entry in group[: rule.keep]}
    reasons = [_reason_to_keep(entry, rule, now_s, is_newest=id(entry) in newest_ids) for entry in everything]
    resumable = {
        (entry.script, entry.args)
        for entry, reason in zip(everything, reasons, strict=True)
        if reason and isinstance(entry, Run) and entry.state == INTERRUPTED
    }
    for index, entry in enumerate(everything):
        if isinstance(entry, Run) and entry.state == FINISHED and (entry.script, entry.args) in resumable:
            reasons[index] = reasons[index] or _WOULD_RESUME
    entries = list(zip(everything, reasons, strict=True))
    return Plan(
        deleted=tuple(entry for entry, reason in entries if not reason),
        kept=tuple((entry, reason) for entry, reason in entries if reason),
    )


def _reason_to_keep(entry: Run | Results, rule: Rule, now_s: float, *, is_newest: bool) -> str:
    age_s = now_s - entry.active_s
    if isinstance(entry, Results):
        if entry.is_running or age_s < _BETWEEN_ROWS_S:
            return "running, or active a moment ago"
    elif entry.state == RUNNING:
        return "running"
    elif entry.state == UNREADABLE:
        return "unreadable: look at it, and delete it by hand"
    elif entry.state == INTERRUPTED and not rule.interrupted:
        return "interrupted, and can be resumed (--interrupted deletes them too)"
    if age_s < rule.older_than_s:
        return "not old enough (--older-than)"
    return "the newest of its script or kind (--keep)" if is_newest else ""


def describe(entry: Run | Results) -> str:
    """The kind or state of an entry."""
    if isinstance(entry, Results):
        return f"{entry.kind} of {counted(entry.num_runs, 'run')}"
    return "ended before its first checkpoint" if entry.state == FAILED else entry.state


def num_bytes(path: Path) -> int:
    """Disk usage of a directory, in bytes; a file with several links counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for entry in _files(path):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # deleted meanwhile
            continue
        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _files(path: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(Path(entry.path))
    except OSError:  # not readable by this user
        return


def delete(entry: Run | Results) -> str:
    """Delete a run or results, unless there was activity since they were read. Returns why not; empty: deleted.

    They are renamed first, so that a partly deleted run is never found.
    """
    path = entry.path
    if path.is_symlink():
        return "it is a link"
    locks: list[RunLock] = []
    try:
        for run in _runs_of(entry):
            current = inventory.read_run(run)
            if current.state == RUNNING:
                return f"{current.holder} runs in it"
            if current.active_s > entry.active_s:
                return "there was activity in it meanwhile"
            locks.append(RunLock(run, patience_s=0.0))
        removed = path.with_name(f"{_REMOVED}{path.name}-{os.getpid()}-{time.time_ns()}")
        path.rename(removed)
        shutil.rmtree(removed)
    except ConfigError:
        return "a process has started to use it"
    except OSError as error:
        return f"it cannot be deleted: {error}"
    finally:
        for lock in locks:
            lock.release()
    return ""


def _runs_of(entry: Run | Results) -> list[Path]:
    if isinstance(entry, Run):
        return [entry.path]
    return [run.path for run in inventory.read_runs(entry.path / "runs")[0]] if (entry.path / "runs").is_dir() else []


def remove_leftovers(directory: Path) -> None:
    """Delete directories left by a call that was killed while deleting."""
    for path in directory.glob(f"{_REMOVED}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
