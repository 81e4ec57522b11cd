"""Trackers with wandb's interface: Weights & Biases, Trackio, and others with ``init``, ``log`` and ``finish``."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.base import extensions
from lockstep.base.atomic import write_atomic
from lockstep.base.regular import read_bytes
from lockstep.base.shapes import fits, parse
from lockstep.base.stopping import say
from lockstep.base.trackers import OBJECT, TRACKERS
from lockstep.journal.history import read_launches

_FILE_NAME = "trackers.json"
_GROUPS = {"training": "step", "evaluation": "evaluate"}
"""The kind of events that are written together with a group."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What trackers record about the run."""

    run_dir: Path
    project: str
    """The default name of the project."""
    settings: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    """Of the script: more become known until the first step."""
    is_again: bool
    """Whether an earlier launch has used the run directory."""
    aside: Callable[[], AbstractContextManager[None]]
    """A context that restores the random streams."""


class WandbLike:
    """One such tracker. After its first error, which is reported, it is no longer used, and training continues.

    Args:
        name: as in ``RunConfig.track``.
        given: the tracker's object, if the script has given one.
    """

    def __init__(self, name: str, about: RunInfo, given: Any = None) -> None:
        self._name, _, self._project = (name, "", "") if name.startswith(OBJECT) else name.partition(":")
        self._about = about
        self._given = given
        self._run: Any = None
        self._is_over = False
        self._known = self._read() if about.is_again else {}
        self._written = last_written(about.run_dir) if self._name in self._known else {}
        """The last steps that an earlier launch has written, by group."""

    def open(self) -> None:
        """See Tracker."""
        if self._run is None:
            self._try("cannot be opened", self._open)

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """See Tracker."""
        self.open()
        if self._run is not None and step > self._written.get(group, 0):
            row = {f"{group}/{name}": value for name, value in values.items()}
            self._try("cannot be written to", lambda: self._run.log(row, step=step))

    def close(self, *, failed: bool) -> None:
        """See Tracker."""
        if self._run is not None:
            finish = self._run.finish
            self._try("cannot be closed", lambda: finish(**_taken(finish, exit_code=int(failed))))
        self._run, self._is_over = None, True

    def _try(self, what: str, act: Callable[[], object]) -> None:
        if self._is_over:
            return
        try:
            with self._about.aside():
                act()
        except (Exception, SystemExit) as error:
            self._is_over, self._run = True, None
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            if isinstance(error, ModuleNotFoundError) and error.name == self._package:
                why = f"{self._package} is not installed: pip install {self._package}"
            title = f"the tracker {self._name.removeprefix(OBJECT)}"
            say(f"WARNING: {title} {what}: {why}. Training continues without it, and events.jsonl has all values.")

    @property
    def _package(self) -> str:
        return TRACKERS[self._name].package if self._name in TRACKERS else self._name

    def _open(self) -> None:
        tracker = self._load()
        about = self._about
        number = self._known.get(self._name) or secrets.token_hex(4)
        variable = TRACKERS[self._name].project_variable if self._name in TRACKERS else ""
        arguments = {
            "project": self._project or os.environ.get(variable or "-", "") or about.project,
            "name": about.run_dir.absolute().name,
            "config": {**about.settings, **about.hyperparameters},
            "dir": str(about.run_dir),
            "id": number,
            "resume": "allow",
        }
        taken = _taken(tracker.init, **arguments)
        if "id" not in taken and "name" in taken:  # it identifies runs by name, including those in other directories
            taken["name"] = f"{arguments['name']}-{number}"
        run = tracker.init(**taken)
        self._run = run if callable(getattr(run, "log", None)) and callable(getattr(run, "finish", None)) else tracker
        write_atomic(about.run_dir / _FILE_NAME, json.dumps({**self._read(), self._name: number}) + "\n")

    def _load(self) -> Any:
        if self._given is not None:
            return self._given
        if self._name in TRACKERS:
            return importlib.import_module(self._package)
        tracker = extensions.load("trackers", self._name)
        return tracker() if isinstance(tracker, type) else tracker

    def _read(self) -> dict[str, str]:
        try:
            known = parse(read_bytes(self._about.run_dir / _FILE_NAME))
        except (OSError, ValueError):
            return {}
        return known if fits(known, dict[str, str]) else {}


def _taken(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """The arguments that a function accepts."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    return {name: value for name, value in arguments.items() if name in {parameter.name for parameter in parameters}}


def last_written(run_dir: Path) -> dict[str, int]:
    """The last steps whose values were written, by group, from the journal, which is written together with the trackers.

    Steps that a resumed run repeats have the same values, so only later ones are written. An evaluation counts if its step
    does.
    """
    try:
        launches = read_launches(run_dir)
    except OSError:
        return {}
    last = {
        group: max((event.get("step", 0) for launch in launches if (event := launch.last(kind))), default=0)
        for group, kind in _GROUPS.items()
    }
    if last["training"]:
        last["evaluation"] = min(last.values())
    return last
