"""Tests that a training computes the same on every number of processes, and after it was killed.

``same_at`` runs a function that trains; the pytest plug-in (``plugin``) does so with a test that is
marked ``lockstep``."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.testing._errors import DifferenceError, TimeLimitError
    from lockstep.testing._same import same_at

_MODULES = {
    "DifferenceError": "lockstep.testing._errors",
    "TimeLimitError": "lockstep.testing._errors",
    "same_at": "lockstep.testing._same",
}

__all__ = ["DifferenceError", "TimeLimitError", "same_at"]


def __getattr__(name: str) -> object:
    # On first use: pytest imports this package with the plug-in, also where no test needs it.
    if name not in __all__:
        raise AttributeError(f"module 'lockstep.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_MODULES[name]), name)
    return value
