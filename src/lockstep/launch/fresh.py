"""What a script finds in a process of its own, though its worker is a copy of the fork server, which has imported much already:
modules that its directory has names for, and torch with what the script sets in the environment before it imports it."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

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


class HiddenPackage:
    """An imported package, hidden from ``sys.modules`` until it is imported again, or ``reveal`` is called.

    Args:
        name: of the package, which must be imported.
        when_imported: called as the package's own code would run, by the first import.
    """

    def __init__(self, name: str, when_imported: Callable[[], None]) -> None:
        self._name = name
        self._when_imported = when_imported
        self._hidden = {known: sys.modules[known] for known in sys.modules if f"{known}.".startswith(f"{name}.")}
        self._spec = self._hidden[name].__spec__
        for known in self._hidden:
            del sys.modules[known]
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """For ``sys.meta_path``."""
        if name != self._name or not self._hidden:
            return None
        origin = None if self._spec is None else self._spec.origin
        return importlib.machinery.ModuleSpec(name, self, origin=origin, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """For the import system."""
        return self._hidden.get(self._name)

    def exec_module(self, module: ModuleType) -> None:
        """For the import system."""
        self.reveal()
        self._when_imported()

    def reveal(self) -> None:
        """Put the package back. May be called again."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._hidden:
            self._hidden[self._name].__spec__ = self._spec
            sys.modules.update(self._hidden)
            self._hidden = {}
