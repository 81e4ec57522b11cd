"""What comparisons and verifications share: a script is run again and again, and of each run a record is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lockstep.analysis import runner
from lockstep.analysis.failure import first_error, whole_error
from lockstep.analysis.machine import Machine
from lockstep.atomic import write_atomic

SCHEMA = 1
FILE_NAME = "results.json"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user has asked for, whatever is done with it."""

    command: tuple[str, ...] = ()
    """What he typed, for the record."""
    script: Path
    """Or, with ``is_module``, the name of a module."""
    args: tuple[str, ...] = ()
    is_module: bool = False
    shards: int | None = None
    """One V for all runs: the answer depends on it."""
    threads: int | None = None
    """Of each process, in all runs; None: as the script and its launcher have it."""
    seed: int | None = None
    """None: the script's own."""
    timeout_s: float | None = None
    """Of each run."""

    def completed(self, **fields: Any) -> dict[str, Any]:
        """All of it, with these fields in addition or instead."""
        return {**{field.name: getattr(self, field.name) for field in dataclasses.fields(Asked)}, **fields}


@dataclass(frozen=True, kw_only=True)
class Task(Asked):
    """What is run."""

    shards: int

    @property
    def program(self) -> tuple[str, ...]:
        """The script with its arguments, as they follow ``python`` on a command line."""
        return (*(("-m",) if self.is_module else ()), str(self.script), *self.args)

    def as_json(self, directory: Path, machine: Machine) -> dict[str, Any]:
        """What every ``results.json`` begins with."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "script": str(self.script),
            "is_module": self.is_module,
            "args": self.args,
            "directory": str(directory.resolve()),
            "shards": self.shards,
            "threads": self.threads,
            "seed": self.seed,
            "machine": dataclasses.asdict(machine),
        }


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What became of one run."""

    status: str = "not run"
    """``ok``, ``failed``, ``timeout``, ``interrupted`` or ``not run``."""
    reason: str | None = None
    """In one line; None if the status is ``ok``."""
    error: str = ""
    """All that the run said of its first error."""
    command: tuple[str, ...] = ()
    run_dir: str | None = None
    """Relative to the directory of the results, as is ``log``."""
    log: str | None = None
    exit_status: int | None = None
    command_s: float | None = None
    """The whole command, start-up and evaluation included."""


class Observer(Protocol):
    """Told how it goes on."""

    def started(self, what: str) -> None:
        """A run is about to be started."""

    def waiting(self, elapsed_s: float) -> None:
        """Several times a second while it runs."""

    def ended(self, outcome: str) -> None:
        """It ended, one way or another."""


def attempt(
    task: Task,
    start: runner.Start,
    *,
    run_dir: Path,
    log: Path,
    directory: Path,
    observer: Observer,
    kill_when: Callable[[], bool] | None = None,
) -> Attempt:
    """Run a command to its end, or until it is killed: its status is ``ok`` then, and it has no exit status.

    Its log must not lie in its run directory: join() may refuse one that is not empty.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    ended = runner.run_to_end(start, log=log, timeout_s=task.timeout_s, on_tick=observer.waiting, kill_when=kill_when)
    status, reason, error = "ok", None, ""
    if ended.status == "timeout":
        status, reason = "timeout", f"did not end within {task.timeout_s:g} s and was stopped"
    elif ended.status == "interrupted":
        status, reason = "interrupted", f"stopped from outside after {ended.wall_s:.0f} s"
    elif ended.status == "exited" and ended.exit_status != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        status, reason, error = "failed", first_error(text, ended.exit_status), whole_error(text)
    return Attempt(
        status=status,
        reason=reason,
        error=error,
        command=start.command,
        run_dir=str(run_dir.relative_to(directory)),
        log=str(log.relative_to(directory)),
        exit_status=ended.exit_status,
        command_s=ended.wall_s,
    )


def new_directory(out: Path) -> Path:
    """Make ``out``; if something is there already, ``out-2``, ``out-3``, ... Nothing is ever deleted or mixed."""
    for number in itertools.count(1):
        candidate = out if number == 1 else out.with_name(f"{out.name}-{number}")
        with contextlib.suppress(FileExistsError):
            candidate.mkdir(parents=True)
            return candidate
        if candidate.is_dir() and not any(candidate.iterdir()):
            return candidate
    raise AssertionError("count() does not end")


def write_results(directory: Path, results: dict[str, Any]) -> Path:
    """Write ``results.json``, replacing an earlier one whole: a reader never finds half a file."""
    path = directory / FILE_NAME
    write_atomic(path, json.dumps(results, indent=2, ensure_ascii=False, default=str) + "\n")
    return path


def counted(number: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
