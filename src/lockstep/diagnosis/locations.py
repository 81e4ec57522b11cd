"""Who owns a source file, and where in the user's code something happened."""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from pathlib import Path

OURS = str(Path(__file__).parents[1]) + "/"
"""The directory of lockstep itself."""
_LIBRARIES = ("/site-packages/", "/dist-packages/")
_PLUMBING = tuple(f"{library}{name}/" for library in _LIBRARIES for name in ("torch", "numpy"))
_STANDARD = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})

Location = tuple[str, int]
"""A file and a line in it."""


@functools.cache
def owner(file: str) -> str:
    """The owner of a file: ``user``, ``lockstep``, ``library`` (installed), or ``plumbing`` (PyTorch, NumPy, Python itself)."""
    if file.startswith(OURS):
        return "lockstep"
    if any(name in file for name in _PLUMBING) or file.startswith("<"):
        return "plumbing"
    if any(name in file for name in _LIBRARIES):
        return "library"
    return "plumbing" if file.startswith(_STANDARD) else "user"


def file_of(kind: type) -> str:
    """The file in which a class is defined."""
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or "<built in>"


def location_of(frame: types.FrameType | None) -> Location | None:
    """The innermost location in the user's code from which a frame was called, or else in a library.

    None: lockstep or PyTorch called it on their own (a sampler that draws random numbers, say).
    """
    library: Location | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        whose = owner(file)
        if whose == "user":
            return file, frame.f_lineno
        if whose == "lockstep":
            break
        if file.startswith("<frozen importlib"):
            return None  # a module is imported once, before anything is computed
        if whose == "library" and library is None:
            library = file, frame.f_lineno
        frame = frame.f_back
    return library


def is_fetching(frame: types.FrameType | None) -> bool:
    """Whether a frame was called to fetch samples."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS + "data/") and file.endswith(("/fetch.py", "/reader.py", "/sources.py")):
            return True
        frame = frame.f_back
    return False
