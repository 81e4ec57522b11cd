"""Whose code a frame of a stack is in."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

OURS = str(Path(__file__).parents[2]) + "/"
"""The directory of lockstep itself."""
_LIBRARIES = ("/site-packages/", "/dist-packages/")
_PLUMBING = tuple(f"{library}{name}/" for library in _LIBRARIES for name in ("torch", "numpy"))
_STANDARD = str(Path(os.__file__).parent) + "/"

Frame = tuple[str, int, str]
"""File, line, and function."""


_SCRIPTS = str(Path(sys.executable).parent)
"""The directory of console scripts."""
_claimed = set[str]()
"""The packages that records of other processes have named as their programs'."""


def owner(file: str) -> str:
    """The owner of a file: ``user``, ``lockstep``, ``library`` (installed), or ``plumbing`` (PyTorch, NumPy, Python itself).

    The package to which the program itself belongs is the user's, wherever it is installed.
    """
    kind = _kind(file)
    return "user" if kind == "library" and _package(file) in (*_claimed, own_package()) else kind


def short_path(file: str) -> str:
    """A file's path from its package on, if it is installed, lockstep's or Python's; else whole."""
    home = f"{Path(_package(file) or OURS).parent}/"
    return file.removeprefix(home if file.startswith(home) else _STANDARD)


def own_package() -> str:
    """The directory (or only file) of the installed package to which this process's program belongs; empty: to none."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    if file.startswith(f"{_SCRIPTS}/"):  # a console script imports the function that it calls
        homes = [getattr(value, "__module__", None) for value in tuple(vars(main).values()) if callable(value)]
        files = [getattr(sys.modules.get(home), "__file__", None) or "" for home in homes if isinstance(home, str)]
        file = next((file for file in files if _kind(file) == "library"), "")
    return _package(file)


def claim(package: str) -> None:
    """Count a package as the user's: what ``own_package`` is in the process of which a record is shown here."""
    if package:
        _claimed.add(package)


@functools.cache
def _package(file: str) -> str:
    """An installed file's package: the path up to its first name in the directory of packages; empty: it is not installed."""
    place, marker, rest = next((parts for name in _LIBRARIES if (parts := file.partition(name))[1]), ("", "", ""))
    return place + marker + rest.partition("/")[0] if marker else ""


@functools.cache
def _kind(file: str) -> str:
    if file.startswith(OURS):
        return "lockstep"
    if any(name in file for name in _PLUMBING) or file.startswith("<"):
        return "plumbing"
    if any(name in file for name in _LIBRARIES):
        return "library"
    return "plumbing" if file.startswith(_STANDARD) else "user"
