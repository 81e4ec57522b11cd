"""Determines whose code a frame of a stack belongs to."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import FrameType

OURS = str(Path(__file__).parents[2]) + "/"
"""The directory of lockstep itself."""
_LIBRARIES = ("/site-packages/", "/dist-packages/")
_PLUMBING = tuple(f"{library}{name}/" for library in _LIBRARIES for name in ("torch", "numpy"))
_STANDARD = str(Path(os.__file__).parent) + "/"

UNSEEN = f"{OURS}_tools/explain/recorded_calls.py"
"""The file in which calls are noted, between a script's frames and PyTorch's. Errors never
originate there."""

Frame = tuple[str, int, str]
"""File, line, and function."""


def without_unseen(error: BaseException) -> None:
    """Removes the frames that only note calls from an exception's traceback."""
    trace = error.__traceback__
    while trace is not None:
        while trace.tb_next is not None and trace.tb_next.tb_frame.f_code.co_filename == UNSEEN:
            trace.tb_next = trace.tb_next.tb_next
        trace = trace.tb_next


@functools.cache
def owner(file: str) -> str:
    """The owner of a file: ``user``, ``lockstep``, ``library`` (installed), or ``plumbing``
    (PyTorch, NumPy, Python itself)."""
    if file.startswith(OURS):
        return "lockstep"
    # In this order, since the places lie within each other: torch and numpy are installed packages,
    # and packages are often below the folder of the standard library.
    if any(name in file for name in _PLUMBING) or file.startswith("<"):
        return "plumbing"
    if any(name in file for name in _LIBRARIES):
        return "library"
    return "plumbing" if file.startswith(_STANDARD) else "user"


def package_of(file: str) -> str:
    """Returns the name of the package to which a file belongs: ``torch``, ``lockstep``, ``Python``;
    empty for a user's file."""
    if file.startswith(OURS):
        return "lockstep"
    return Path(package).stem if (package := _package(file)) else "" if owner(file) == "user" else "Python"


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code, from ``frame`` outwards; None: there is none."""
    while frame is not None and owner(frame.f_code.co_filename) != "user":
        frame = frame.f_back
    return frame


def short_path(file: str) -> str:
    """Returns a file's path from its package on, if it is installed, lockstep's or Python's;
    otherwise the whole path."""
    home = f"{Path(_package(file) or OURS).parent}/"
    return file.removeprefix(home if file.startswith(home) else _STANDARD)


@functools.cache
def _package(file: str) -> str:
    """Returns the package of an installed file: the path up to the first name in the directory of
    packages; empty: it is not installed."""
    place, marker, rest = next((parts for name in _LIBRARIES if (parts := file.partition(name))[1]), ("", "", ""))
    return place + marker + rest.partition("/")[0] if marker else ""
