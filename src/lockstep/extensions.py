"""What is found by name if it is installed: the tools of this package, and what other packages add by entry points.

The engine and the launcher import no tool. They ask here for what has registered under one of these kinds.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from typing import Any

PREFIX = "lockstep."
"""Other packages register under an entry point group of this and the kind: ``lockstep.commands``, say."""

BUILT_IN: dict[str, dict[str, str]] = {
    "observers": {"explain": "lockstep.tools.explain.launching.observer:Explainer"},
    "process_observers": {"explain": "lockstep.tools.explain.launching.process:ProcessExplainer"},
}
"""What comes with this package, by kind and name: ``module:attribute``."""


def names(kind: str) -> list[str]:
    """The names registered for a kind, those of this package first, without importing what they stand for."""
    return list(_found(kind))


def load(kind: str, name: str) -> Any:
    """Import what is registered for a kind under a name.

    Raises:
        KeyError: nothing is.
    """
    module, _, attribute = _found(kind)[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_all(kind: str) -> list[Any]:
    """Import everything that is registered for a kind, in order."""
    return [load(kind, name) for name in names(kind)]


@functools.cache
def _found(kind: str) -> dict[str, str]:
    built_in = {name: where for name, where in BUILT_IN.get(kind, {}).items() if _exists(where.partition(":")[0])}
    others = {point.name: point.value for point in importlib.metadata.entry_points(group=PREFIX + kind)}
    return {**built_in, **{name: where for name, where in others.items() if name not in built_in}}


@functools.cache
def _exists(module: str) -> bool:
    """Whether a module is there; a package with its tools left out is complete without them."""
    package, _, _ = module.rpartition(".")
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
