"""Tests that a training computes the same on every number of processes, and after it was killed.

``same_at`` runs a function that trains; the pytest plug-in (``plugin``) does so with a test that is
marked ``lockstep``."""

from __future__ import annotations

from lockstep._base import exports as _exports

_MODULES = _exports.read(__file__)

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    # On first use: pytest imports this package with the plug-in, also where no test needs it.
    value = globals()[name] = _exports.load(__name__, _MODULES, name)
    return value
