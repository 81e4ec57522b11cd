"""What a check has found, and the checks' common form."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.config import RunConfig
from lockstep.launch.nodes import Nodes
from lockstep.world import World

OK, WARN, FAIL = "ok", "warn", "fail"
STATES = (OK, WARN, FAIL)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer to one question."""

    state: str
    """``ok``; ``warn``: a run works, but slowly or not for long; ``fail``: a run will not work."""
    found: str
    """With values."""
    remedy: str = ""
    check: str = ""
    host: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What was looked at, for programs: JSON values."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What is to be started here, as far as it is known before."""

    num_processes: int
    """On this machine."""
    config: RunConfig = field(default_factory=RunConfig)
    world: World = field(default_factory=World)
    nodes: Nodes | None = None
    """The machines that are to meet; None: this machine alone."""
    master_port: int | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def has_several_hosts(self) -> bool:
        """Whether other machines belong to the run."""
        return self.nodes is not None or self.world.num_nodes > 1

    @property
    def run_dir(self) -> Path:
        """The nearest directory that exists, of those that the run's is or will be in."""
        path = Path(self.config.run_dir or "runs").absolute()
        while not path.exists() and path != path.parent:
            path = path.parent
        return path


@dataclass(frozen=True)
class Check:
    """One question about this machine."""

    name: str
    question: str
    look: Callable[[Situation], dict[str, Any]]
    """Returns what ``judge`` takes, by name: JSON values."""
    judge: Callable[..., Finding]
    """Pure."""

    def examine(self, situation: Situation) -> Finding:
        """Look, and judge."""
        values: dict[str, Any] = {}
        try:
            values = self.look(situation)
            verdict = self.judge(**values)
        except Exception as error:  # whatever is wrong with this machine, the other questions have answers
            verdict = warn(f"no answer: {type(error).__name__}: {error}", "see whether the message tells why")
        return self.signed(verdict, values)

    def signed(self, verdict: Finding, values: Mapping[str, Any]) -> Finding:
        """A verdict with the check's name and this host's."""
        return replace(verdict, check=self.name, host=socket.gethostname(), values=values)


def ok(found: str) -> Finding:
    """Nothing to do."""
    return Finding(state=OK, found=found)


def warn(found: str, remedy: str) -> Finding:
    """It works, but not well."""
    return Finding(state=WARN, found=found, remedy=remedy)


def fail(found: str, remedy: str) -> Finding:
    """It will not work."""
    return Finding(state=FAIL, found=found, remedy=remedy)
