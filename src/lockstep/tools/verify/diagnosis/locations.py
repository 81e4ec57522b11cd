"""Where in the user's code something happened."""

from __future__ import annotations

import sys
import types

from lockstep.base.tracebacks.frames import OURS, owner

Location = tuple[str, int]
"""A file and a line in it."""


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
