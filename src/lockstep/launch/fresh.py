"""Modules beside the script win over those of the same name that the fork server has imported for its worker."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys

_SHARED = frozenset(("torch", "numpy", "lockstep"))
"""Packages that stay imported whatever is beside the script: native code cannot be loaded twice."""
at_start: frozenset[str] = frozenset()
"""The modules that the interpreter itself had imported before the fork server did: no script can shadow those."""


def forget_shadowed(directory: str) -> None:
    """Forget imported modules that python would rather import from the script's directory, the first entry of ``sys.path``:
    ``code.py`` beside the script, and not the standard library's. Whoever has imported one of them already keeps it."""
    beside = set[str]()
    with contextlib.suppress(OSError):
        beside = {entry.partition(".")[0] for entry in os.listdir(directory)}  # noqa: PTH208
    for name in beside & sys.modules.keys() - at_start - _SHARED:
        module, spec = sys.modules[name], importlib.machinery.PathFinder.find_spec(name, [directory])
        is_first = name in sys.builtin_module_names or importlib.machinery.FrozenImporter.find_spec(name) is not None
        if is_first or spec is None or not spec.has_location or spec.origin == getattr(module, "__file__", None):
            continue
        for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
            del sys.modules[known]
