"""What is found by name if it is installed: the tools of this package, and what other packages add
by entry points.

The engine and the launcher import no tool. They ask here for what has registered under one of these
kinds."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from lockstep._base.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PREFIX = "lockstep."
"""Other packages register under an entry point group of this and the kind: ``lockstep.commands``,
say."""

BUILT_IN: dict[str, dict[str, str]] = {
    "commands": {
        "new": "lockstep._cli.new:command",
        "run": "lockstep._cli.run:command",
        "check": "lockstep._tools.check.command:command",
        "checkpoint": "lockstep._tools.checkpoint.command:command",
        "compare": "lockstep._tools.compare.command:command",
        "doctor": "lockstep._tools.doctor.command:command",
        "replay": "lockstep._tools.replay.command:command",
        "report": "lockstep._tools.report.command:command",
        "runs": "lockstep._tools.runs.command:command",
        "slurm": "lockstep._tools.slurm.command:command",
        "tune": "lockstep._tools.tune.command:command",
        "verify": "lockstep._tools.verify.command:command",
        "watch": "lockstep._tools.watch.command:command",
        "diff": "lockstep._tools.replay.diff_command:command",
        "stacks": "lockstep._tools.explain.command:command",
    },
    "instruments": {
        "trials": "lockstep._tools.trials.instrument:TrialInstrument",
        "replay": "lockstep._tools.replay.instrument:Replay",
        "audit": "lockstep._tools.audit.instrument:Audit",
        "tune": "lockstep._tools.tune.instrument:Tuning",
        "verify": "lockstep._tools.verify.instrument:Trace",
        "check": "lockstep._tools.check.instrument:Reading",
        "explain": "lockstep._tools.explain.instrument:Explanation",
    },
    "options": {
        "verify": "lockstep._tools.verify.instrument:TraceOptions",
        "replay": "lockstep._tools.replay.options:JournalOptions",
        "audit": "lockstep._tools.audit.instrument:AuditOptions",
    },
    "observers": {"explain": "lockstep._tools.explain.launching.observer:Explainer"},
    "process_observers": {"explain": "lockstep._tools.explain.launching.process:ProcessExplainer"},
}
"""What comes with this package, by kind and name: ``module:attribute``."""


def names(kind: str) -> list[str]:
    """The names registered for a kind, those of this package first, without importing what they
    stand for."""
    built_in = built_in_names(kind)
    return [*built_in, *(name for name in _others(kind) if name not in built_in)]


def built_in_names(kind: str) -> list[str]:
    """Those of this package, as far as it is there: it is complete without its tools."""
    return [name for name, where in BUILT_IN.get(kind, {}).items() if _exists(where)]


def package_of(kind: str, name: str) -> str:
    """The package that has registered a name that is not built in."""
    distribution = _others(kind)[name].dist
    return "another package" if distribution is None else str(distribution.name)


def load(kind: str, name: str) -> Any:
    """Import what is registered for a kind under a name.

    Raises:
        KeyError: nothing is.
    """
    where = BUILT_IN.get(kind, {}).get(name)
    if where is None or not _exists(where):
        return _others(kind)[name].load()
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_for_runs(kind: str, name: str) -> Any:
    """As ``load``, of what an installed package adds to every run.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return load(kind, name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cannot import {name!r} of lockstep.{kind}, which an installed package adds to every run: {error!r}. Update or "
            "uninstall that package.",
            code="extension-import-failed",
        ) from error


def _others(kind: str) -> dict[str, EntryPoint]:
    packages: dict[str, list[EntryPoint]] = {}
    for place in sys.path:
        for package, points in _packages(place).items():
            packages.setdefault(package, points)  # of two versions, that which is imported
    return {point.name: point for points in packages.values() for point in points if point.group == PREFIX + kind}


@functools.cache
def _packages(place: str) -> dict[str, list[EntryPoint]]:
    """What packages in a directory of ``sys.path`` register, by their names.

    That is slow: a worker knows it from the server that it is forked from, but for the directory of
    its script."""
    from importlib.metadata import distributions  # slow to import, too

    found = {}
    for distribution in distributions(path=[place]):
        if points := [point for point in distribution.entry_points if point.group.startswith(PREFIX)]:
            found[distribution.name] = points
    return found


@functools.cache
def _exists(where: str) -> bool:
    package, _, _ = where.partition(":")[0].rpartition(".")
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
