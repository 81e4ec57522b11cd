"""Finds tools by name: the built-in ones, and the ones that other packages add by entry points.

The engine and the launcher import no tool, so that both work without the tools (tests/test_rings.py
deletes them). They ask this module for what is registered under a kind::

    engine ----- names("instruments"), load(...) ----> this table --- imports --> _tools/...
    launcher --- names("observers"), load(...) ------> entry points ------------> other packages

Names come first and imports later, for two reasons. The command line lists its commands without
importing torch, which takes seconds. And an extension of another package may be broken:
``load_for_runs`` turns its import error into a message that names the package to uninstall."""

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
"""The prefix of entry point groups in which other packages register a kind, such as
``lockstep.commands``."""

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
"""The extensions of this package, by kind and name: ``module:attribute``."""


def names(kind: str) -> list[str]:
    """Returns the names registered for a kind, this package's first, without importing the
    extensions."""
    built_in = built_in_names(kind)
    return [*built_in, *(name for name in _others(kind) if name not in built_in)]


def built_in_names(kind: str) -> list[str]:
    """Returns this package's names for a kind, if their modules are installed: the package is
    complete without its tools."""
    return [name for name, where in BUILT_IN.get(kind, {}).items() if _exists(where)]


def package_of(kind: str, name: str) -> str:
    """Returns the package that registered a name that is not built in."""
    distribution = _others(kind)[name].dist
    return "another package" if distribution is None else str(distribution.name)


def load(kind: str, name: str) -> Any:
    """Imports the extension registered for a kind under a name.

    Raises:
        KeyError: no extension has this name.
    """
    where = BUILT_IN.get(kind, {}).get(name)
    if where is None or not _exists(where):
        return _others(kind)[name].load()
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_for_runs(kind: str, name: str) -> Any:
    """Like ``load``, for an extension that an installed package adds to every run.

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
            # of two versions, the first one: Python imports it
            packages.setdefault(package, points)
    return {point.name: point for points in packages.values() for point in points if point.group == PREFIX + kind}


@functools.cache
def _packages(place: str) -> dict[str, list[EntryPoint]]:
    """Returns the entry points of the packages in one directory of ``sys.path``, by package.

    Cached per directory, because reading the metadata is slow. A worker inherits the cache of the
    fork server, and reads only the directory of its script."""
    from importlib.metadata import distributions  # slow to import, too

    found = {}
    for distribution in distributions(path=[place]):
        if points := [point for point in distribution.entry_points if point.group.startswith(PREFIX)]:
            found[distribution.name] = points
    return found


@functools.cache
def _exists(where: str) -> bool:
    # The package of the module, since `find_spec` imports the parents of what it looks for: this
    # imports `lockstep._tools`, and not the tool.
    package, _, _ = where.partition(":")[0].rpartition(".")
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
