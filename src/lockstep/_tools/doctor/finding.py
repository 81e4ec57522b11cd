"""Checks and their findings."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep._base.config import RunConfig
from lockstep._launch.nodes import Nodes
from lockstep._world.environment import World

OK, WARN, FAIL = "ok", "warn", "fail"
STATES = (OK, WARN, FAIL)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    state: str
    """``ok``; ``warn``: a run works, but slowly or not for long; ``fail``: a run does not work."""
    found: str
    """The observation, with values."""
    remedy: str = ""
    code: str = ""
    """The stable name of the problem, for programs and tests; empty: there is none."""
    check: str = ""
    host: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of ``judge``, for programs: JSON values."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The planned run on this machine, as far as it is known."""

    num_processes: int
    """The number of processes on this machine."""
    config: RunConfig = field(default_factory=RunConfig)
    world: World = field(default_factory=World)
    nodes: Nodes | None = None
    """The machines of the run; None: only this one."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def world_size(self) -> int:
        """Number of processes of the whole run."""
        if self.nodes is not None:
            return self.nodes.most * self.num_processes
        return max(self.world.world_size, self.num_processes)


@dataclass(frozen=True)
class Check:
    """A check of this machine."""

    name: str
    look: Callable[[Situation], dict[str, Any]]
    """Collects the arguments of ``judge``: JSON values."""
    judge: Callable[..., Finding]
    """Turns them into a finding. Pure."""

    def examine(self, situation: Situation) -> Finding:
        """Runs the check."""
        values: dict[str, Any] = {}
        try:
            values = self.look(situation)
            finding = self.judge(**values)
        except Exception as error:  # an error of one check must not prevent the others
            finding = warn(
                f"the check failed: {type(error).__name__}: {error}", "see the message for the cause", code="check-failed"
            )
        return self.signed(finding, values)

    def signed(self, finding: Finding, values: Mapping[str, Any]) -> Finding:
        """A finding with the names of the check and of this host."""
        return replace(finding, check=self.name, host=socket.gethostname(), values=values)


def ok(found: str) -> Finding:
    """A finding that needs no action."""
    return Finding(state=OK, found=found)


def warn(found: str, remedy: str, *, code: str) -> Finding:
    """A finding that a run works, but not well."""
    return Finding(state=WARN, found=found, remedy=remedy, code=code)


def fail(found: str, remedy: str, *, code: str) -> Finding:
    """A finding that a run does not work."""
    return Finding(state=FAIL, found=found, remedy=remedy, code=code)
