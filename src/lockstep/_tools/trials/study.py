"""What comparisons and verifications share: a script, run in one trial after another, and a record
of them."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lockstep._base.atomic import write_atomic
from lockstep._base.errors import ConfigError
from lockstep._tools.trials.machine import Machine
from lockstep._tools.trials.settings import TrialSettings
from lockstep._tools.trials.trial import Trial

SCHEMA = 1
FILE_NAME = "results.json"
S = TypeVar("S", bound="Study")


@dataclass(frozen=True, kw_only=True)
class Task:
    """The request of the user."""

    command: tuple[str, ...] = ()
    """The command line, for the record."""
    script: Path
    """The script; with ``is_module``, the name of a module."""
    args: tuple[str, ...] = ()
    is_module: bool = False
    shards: int | None = None
    """The requested number of shards; None, here and below: chosen by the study."""
    threads: int | None = None
    seed: int | None = None
    strategy: str | None = None
    """The strategy; None: the script's, or the one of a study's methods."""
    timeout_s: float | None = None
    """The time limit of each trial, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Study(abc.ABC):
    """A script, its trials, and their outcomes so far."""

    task: Task
    machine: Machine
    shards: int
    """The V of all trials, because results depend on it: the requested one, otherwise the script's
    (known from the first trial on), otherwise the plan's."""
    threads: int | None
    """The number of threads of each process, in all trials; None: as the script and its launcher
    set it."""
    directory: Path = Path()
    """The directory of the results, which ``begin`` creates."""

    @property
    @abc.abstractmethod
    def is_interrupted(self) -> bool:
        """Whether it was stopped from outside."""

    def begin(self: S, out: Path) -> S:
        """Returns the same study with a new directory: ``out``, or ``out-2``, ...
        (``new_directory``)."""
        return dataclasses.replace(self, directory=new_directory(out))

    def trial(
        self,
        name: str,
        *,
        launcher: str,
        num_processes: int,
        settings: Mapping[str, object],
        instead: Mapping[str, object] | None = None,
        is_held: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> Trial:
        """One trial of the script.

        Args:
            name: the name of its run directory, in the directory of the results.
            launcher: one of ``methods.LAUNCHERS``.
            num_processes: how many it starts.
            settings: fields of ``RunConfig``, in addition to the common ones. None is not passed
                on, so that the script's setting is used.
            instead: fields that replace the script's.
            is_held: as in ``TrialSettings``.
            variables: more environment variables.
        """
        task = self.task
        run_dir = str((self.directory / name).resolve())
        instead = instead or {}
        defaults = {"shards": self.shards} if task.shards is None else {}
        common = {"shards": task.shards, "threads": self.threads, "seed": task.seed, "strategy": task.strategy}
        given = {**common, "run_dir": run_dir, **settings}
        asked = {name: value for name, value in given.items() if value is not None and name not in instead}
        return Trial(
            directory=self.directory,
            name=name,
            program=(*(("-m",) if task.is_module else ()), str(task.script), *task.args),
            launcher=launcher,
            num_processes=num_processes,
            settings=asked,
            of_script=TrialSettings(defaults=defaults, instead=instead, is_held=is_held),
            variables=variables or {},
            timeout_s=task.timeout_s,
        )

    def as_json(self) -> dict[str, Any]:
        """The contents of ``results.json``: here the fields that all studies have."""
        task = self.task
        return {
            "schema": SCHEMA,
            "command": task.command,
            "script": str(task.script),
            "is_module": task.is_module,
            "args": task.args,
            "directory": str(self.directory.resolve()),
            "shards": self.shards,
            "shards_asked": task.shards,
            "threads": self.threads,
            "seed": task.seed,
            "timeout_s": task.timeout_s,
            "machine": dataclasses.asdict(self.machine),
        }

    def noting(self: S, **changes: Any) -> S:
        """Returns a copy with these fields, and writes it to ``results.json``. The file is replaced
        as a whole, so that a reader never finds half a file."""
        changed = dataclasses.replace(self, **changes)
        path = self.directory / FILE_NAME
        write_atomic(path, json.dumps(changed.as_json(), indent=2, ensure_ascii=False, default=str) + "\n")
        return changed


def new_directory(out: Path) -> Path:
    """Make ``out``; if something is there already, ``out-2``, ``out-3``, ... Nothing is ever
    deleted or mixed.

    Raises:
        ConfigError: it cannot be made.
    """
    for number in itertools.count(1):
        candidate = out if number == 1 else out.with_name(f"{out.name}-{number}")
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigError(
                f"cannot write results to {candidate.absolute()}: {error.strerror}. Use another directory: --out DIR",
                code="results-not-writable",
            ) from None
        if candidate.is_dir() and not any(candidate.iterdir()):
            return candidate
    raise AssertionError("count() does not end")
