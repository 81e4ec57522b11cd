"""A tracker of wandb's shape: Weights & Biases, Trackio, and whatever else has ``init``, ``log`` and ``finish``."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.atomic import write_atomic
from lockstep.measure.events import FILE_NAME as JOURNAL
from lockstep.stopping import say
from lockstep.trackers import OBJECT, TRACKERS, plugins

_FILE_NAME = "trackers.json"
_TOLD = re.compile(rb'^\{"event": "(step|evaluate)"[^\n]*?"step": (\d+)', re.MULTILINE)
_GROUPS = {b"step": "training", b"evaluate": "evaluation"}


@dataclass(frozen=True, kw_only=True)
class About:
    """The run, as trackers are told of it."""

    run_dir: Path
    project: str
    """By default: the name of the script."""
    config: Callable[[], dict[str, Any]]
    """Its settings, its birth and what else it depends on; called before the first step."""
    is_again: bool
    """Whether an earlier launch has used the run directory."""
    aside: Callable[[], AbstractContextManager[None]]
    """In it random streams may be drawn from, and are put back."""


class Shaped:
    """One of them. Whatever goes wrong in it is said once, and then it is left alone: training goes on.

    Args:
        name: as in ``RunConfig.track``.
        about: the run.
        given: the object, where the script has given one.
    """

    def __init__(self, name: str, about: About, given: Any = None) -> None:
        self._name, _, self._project = (name, "", "") if name.startswith(OBJECT) else name.partition(":")
        self._about = about
        self._given = given
        self._run: Any = None
        self._is_over = False
        self._known = self._read() if about.is_again else {}
        self._told = last_told(about.run_dir / JOURNAL) if self._name in self._known else {}
        """The last steps that an earlier launch has told it of, before this one writes any."""

    def open(self) -> None:
        """See Outlet."""
        if self._run is None:
            self._try("cannot be opened", self._open)

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """See Outlet."""
        self.open()
        if self._run is not None and step > self._told.get(group, 0):
            row = {f"{group}/{name}": value for name, value in values.items()}
            self._try("cannot be written to", lambda: self._run.log(row, step=step))

    def close(self, *, failed: bool) -> None:
        """See Outlet."""
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
                extra = f"'torch-lockstep[{self._name}]'" if self._name in TRACKERS else self._package
                why = f"{self._package} is not installed: pip install {extra}"
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
            "config": about.config(),
            "dir": str(about.run_dir),
            "id": number,
            "resume": "allow",
        }
        taken = _taken(tracker.init, **arguments)
        if "id" not in taken and "name" in taken:  # it knows a run by its name alone, also those of other directories
            taken["name"] = f"{arguments['name']}-{number}"
        run = tracker.init(**taken)
        self._run = run if callable(getattr(run, "log", None)) and callable(getattr(run, "finish", None)) else tracker
        write_atomic(about.run_dir / _FILE_NAME, json.dumps({**self._read(), self._name: number}) + "\n")

    def _load(self) -> Any:
        if self._given is not None:
            return self._given
        if self._name in TRACKERS:
            return importlib.import_module(self._package)
        tracker = plugins()[self._name].load()
        return tracker() if isinstance(tracker, type) else tracker

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads((self._about.run_dir / _FILE_NAME).read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _taken(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those arguments that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    return {name: value for name, value in arguments.items() if name in {parameter.name for parameter in parameters}}


def last_told(journal: Path) -> dict[str, int]:
    """The last steps whose values were written, by group. The journal is written in the same moment as the trackers.

    Steps that a resumed run does again have the same values, so a tracker needs to be told only of those behind. An
    evaluation counts if its step does.
    """
    last = {"training": 0, "evaluation": 0}
    try:
        with journal.open("rb") as lines:
            for line in lines:
                if match := _TOLD.match(line):
                    group = _GROUPS[match[1]]
                    last[group] = max(last[group], int(match[2]))
    except OSError:
        return {}
    if last["training"]:
        last["evaluation"] = min(last.values())
    return last
