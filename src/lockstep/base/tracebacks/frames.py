"""A thread's stack as it is recorded and shown, and whose code it is in."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

OURS = str(Path(__file__).parents[2]) + "/"
"""The directory of lockstep itself."""
_BETWEEN = (f"{OURS}world/comm/", f"{OURS}tools/explain/recorded_calls.py")
MOST_FRAMES = 40
_LIBRARIES = ("/site-packages/", "/dist-packages/")
_PLUMBING = tuple(f"{library}{name}/" for library in _LIBRARIES for name in ("torch", "numpy"))
_STANDARD = str(Path(os.__file__).parent) + "/"
_UNNAMED = re.compile(r"Thread-\d+ \((.+)\)")
"""The name that Python gives to a thread, with that of its function."""
_OUTERMOST, _INNERMOST, _USERS = 2, 3, 2
"""Frames of a deep stack that a report shows."""

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


def is_between(file: str) -> bool:
    """Whether code in this file only passes on what another called: the methods of a team, say."""
    return owner(file) == "plumbing" or file.startswith(_BETWEEN)


def is_own(frames: Sequence[Frame]) -> bool:
    """Whether lockstep itself has called what runs, for no call of the user's; ``frames``: innermost first."""
    return next((owner(file) == "lockstep" for file, _, _ in frames if not is_between(file)), False)


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


def stack_of(frame: FrameType | None) -> list[Frame]:
    """A thread's stack from its innermost ``frame`` on, innermost first; the outermost frames of a deep one are left out."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < MOST_FRAMES:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames


def name_of(thread: threading.Thread) -> str:
    """A thread's name, or that of its function if it was given none."""
    unnamed = _UNNAMED.fullmatch(thread.name)
    return thread.name if unnamed is None else unnamed[1]


def stack_of_error(error: BaseException) -> list[Frame]:
    """The stack with which an exception was raised, innermost frame first."""
    trace = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(trace)]


def shortened(frames: Sequence[Frame]) -> list[Frame | None]:
    """A deep stack's outermost and innermost frames, and the innermost ones of the user's code, which may have called a library
    that is deep itself; None stands for those left out between."""
    users = [number for number, frame in enumerate(frames) if owner(frame[0]) == "user"]
    innermost_first = len(frames) - 1
    kept = {*range(_INNERMOST), *range(innermost_first, innermost_first - _OUTERMOST, -1), *users[:_USERS]}
    shown: list[Frame | None] = []
    for number, frame in enumerate(frames):
        if number in kept:
            shown.append(frame)
        elif shown[-1] is not None:
            shown.append(None)
    return shown


def users_location(frames: Sequence[Frame]) -> str:
    """Where in the user's code a thread is, given its stack, innermost frame first; empty: in none."""
    return next((f"{file}:{line} in {name}" for file, line, name in frames if owner(file) == "user"), "")
