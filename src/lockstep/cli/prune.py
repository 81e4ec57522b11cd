"""Which old runs are deleted, and how: ``lockstep runs --prune``."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.cli import inventory
from lockstep.cli.inventory import FAILED, FINISHED, INTERRUPTED, RUNNING, UNREADABLE, Run
from lockstep.errors import ConfigError
from lockstep.rundir.lock import RunLock

RESULTS = "results.json"
_RESULTS_DIR = re.compile(r"(verification|comparison)(-\d+)?")
_BETWEEN_ROWS_S = 900.0
"""A verification or comparison may be between two of its runs, where nothing of it is locked: for so long it is left alone."""
_AGE = re.compile(r"(\d+)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_REMOVED = ".removed-"
"""How the name of what is being deleted begins. (Runs have none that begins with a dot.)"""


@dataclass(frozen=True, kw_only=True)
class Results:
    """A directory that ``lockstep verify`` or ``lockstep compare`` has made."""

    path: Path
    kind: str
    num_runs: int
    active_s: float
    """When something last happened in it, in seconds since 1970."""
    is_running: bool


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is old enough to go."""

    older_than_s: float
    keep: int
    """So many of each script, and of each kind of results, stay in any case: the newest."""
    interrupted: bool
    """Whether runs that could go on may go."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would be deleted, and what stays for which reason."""

    going: tuple[Run | Results, ...]
    staying: tuple[tuple[Run | Results, str], ...]

    def reasons(self) -> dict[str, int]:
        """How many stay for each reason, the most frequent first."""
        return dict(Counter(reason for _, reason in self.staying).most_common())


def read_age(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``12h``, ``7d``.

    Raises:
        ConfigError: it is none of these.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--older-than {text}: give a number with s, m, h or d behind it: 12h, 7d")
    return float(int(match[1]) * _UNITS_S[match[2]])


def find_results(directory: Path) -> list[Results]:
    """The verifications and comparisons in a directory, the one that was active last at the end."""
    found = []
    for path in sorted(directory.iterdir()):
        match = _RESULTS_DIR.fullmatch(path.name)
        if match is None or path.is_symlink() or not (path / RESULTS).is_file():
            continue
        runs = inventory.look_into(path / "runs")[0] if (path / "runs").is_dir() else []
        times = [(path / RESULTS).stat().st_mtime, *(run.active_s for run in runs)]
        is_running = any(run.state == RUNNING for run in runs)
        found.append(Results(path=path, kind=match[1], num_runs=len(runs), active_s=max(times), is_running=is_running))
    return sorted(found, key=lambda results: results.active_s)


def plan(runs: Sequence[Run], results: Sequence[Results], rule: Rule, now_s: float) -> Plan:
    """What goes. Pure: it looks at nothing.

    What runs never goes, nor what cannot be read (it may be of another version), nor a finished run while one of the same
    command is interrupted and stays: the command would resume that.
    """
    everything: list[Run | Results] = [*runs, *results]
    newest: dict[str | None, list[Run | Results]] = defaultdict(list)
    for one in sorted(everything, key=lambda one: -one.active_s):
        newest[one.kind if isinstance(one, Results) else one.script].append(one)
    kept = {id(one) for group in newest.values() for one in group[: rule.keep]}
    stays: list[tuple[Run | Results, str]] = []
    goes: list[Run | Results] = []
    for one in everything:
        reason = _why_it_stays(one, rule, now_s, is_kept=id(one) in kept)
        if reason:
            stays.append((one, reason))
        else:
            goes.append(one)
    resumable = {(one.script, one.args) for one, _ in stays if isinstance(one, Run) and one.state == INTERRUPTED}
    for one in list(goes):
        if isinstance(one, Run) and one.state == FINISHED and (one.script, one.args) in resumable:
            goes.remove(one)
            stays.append((one, "finished, while an interrupted one of its command stays, which the command would resume"))
    return Plan(going=tuple(goes), staying=tuple(stays))


def _why_it_stays(one: Run | Results, rule: Rule, now_s: float, *, is_kept: bool) -> str:
    age_s = now_s - one.active_s
    if isinstance(one, Results):
        if one.is_running or age_s < _BETWEEN_ROWS_S:
            return "running, or active a moment ago"
    elif one.state == RUNNING:
        return "running"
    elif one.state == UNREADABLE:
        return "unreadable: look at it, and delete it by hand"
    elif one.state == INTERRUPTED and not rule.interrupted:
        return "interrupted, and can be resumed (--interrupted deletes them too)"
    if age_s < rule.older_than_s:
        return "not old enough (--older-than)"
    return "the newest of its script or kind (--keep)" if is_kept else ""


def words(one: Run | Results) -> str:
    """What it is."""
    if isinstance(one, Results):
        return f"{one.kind} of {one.num_runs} run{'' if one.num_runs == 1 else 's'}"
    return "ended before its first checkpoint" if one.state == FAILED else one.state


def num_bytes(path: Path) -> int:
    """What a directory takes on its disk: a file that has two names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for entry in _files(path):
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:  # gone meanwhile
            continue
        seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def _files(path: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(Path(entry.path))
    except OSError:  # not ours to look into
        return


def delete(one: Run | Results) -> str:
    """Delete it, unless something has happened to it since it was looked at. Returns why it stays; empty: it is gone.

    It gets another name first: a run is there whole, or not at all.
    """
    path = one.path
    if path.is_symlink():
        return "it is a link"
    locks: list[RunLock] = []
    try:
        for run in _runs_of(one):
            now = inventory.look_at(run)
            if now.state == RUNNING:
                return f"{now.holder} runs in it"
            if now.active_s > one.active_s:
                return "something has happened to it meanwhile"
            locks.append(RunLock(run, patience_s=0.0))
        removed = path.with_name(f"{_REMOVED}{path.name}-{os.getpid()}-{time.time_ns()}")
        path.rename(removed)
        shutil.rmtree(removed)
    except ConfigError:
        return "a process has begun to run in it"
    except OSError as error:
        return f"it cannot be deleted: {error}"
    finally:
        for lock in locks:
            lock.release()
    return ""


def _runs_of(one: Run | Results) -> list[Path]:
    if isinstance(one, Run):
        return [one.path]
    return [run.path for run in inventory.look_into(one.path / "runs")[0]] if (one.path / "runs").is_dir() else []


def remove_leftovers(directory: Path) -> None:
    """What an earlier call was deleting when it was killed."""
    for path in directory.glob(f"{_REMOVED}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
