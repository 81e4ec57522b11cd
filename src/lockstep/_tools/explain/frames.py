"""A thread's stack as it is recorded and shown."""

from __future__ import annotations

import itertools
import re
import threading
import traceback
from collections.abc import Sequence
from types import FrameType

from lockstep._base.tracebacks.frames import OURS, UNSEEN, Frame, owner, package_of

MOST_FRAMES = 40
_BETWEEN = f"{OURS}_world/comm/"
_UNNAMED = re.compile(r"Thread-\d+ \((.+)\)")
"""The name that Python gives to a thread, with that of its function."""
_OUTERMOST, _INNERMOST, _USERS = 2, 3, 2
"""The numbers of frames of a deep stack that a report shows."""


def stack_of(frame: FrameType | None) -> list[Frame]:
    """A thread's stack from its innermost ``frame`` on, innermost first; the outermost frames of a
    deep one are left out, as is what notes calls between PyTorch's frames."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < MOST_FRAMES:
        if frame.f_code.co_filename != UNSEEN:
            frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames


def name_of(thread: threading.Thread) -> str:
    """A thread's name, or the name of its function if the thread was not named."""
    unnamed = _UNNAMED.fullmatch(thread.name)
    return thread.name if unnamed is None else unnamed[1]


def stack_of_error(error: BaseException) -> list[Frame]:
    """The stack with which an exception was raised, innermost frame first."""
    trace = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(trace)]


def shortened(frames: Sequence[Frame]) -> list[Frame | None]:
    """A deep stack's outermost and innermost frames, and the innermost ones of the user's code,
    which may have called a library that is deep itself; None stands for those left out between."""
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


def folded(frames: Sequence[Frame]) -> list[Frame | str]:
    """A stack as ``lockstep stacks`` shows it, innermost frame first: the user's frames and the
    innermost one, and of others in a row, which are libraries', their number and names."""
    shown: list[Frame | str] = list(frames[:1])
    for is_users, several in itertools.groupby(frames[1:], lambda frame: owner(frame[0]) == "user"):
        row = list(several)
        if is_users or len(row) == 1:
            shown += row
        else:
            packages = list(dict.fromkeys(package_of(frame[0]) for frame in reversed(row)))
            shown.append(f"... {len(row)} frames of {', '.join(packages)}")
    return shown


def users_location(frames: Sequence[Frame]) -> str:
    """Where in the user's code a thread is, given its stack, innermost frame first; empty: in
    none."""
    return next((f"{file}:{line} in {name}" for file, line, name in frames if owner(file) == "user"), "")


def is_between(file: str) -> bool:
    """Whether code in this file only passes a call on, as the methods of a team do."""
    return owner(file) == "plumbing" or file.startswith(_BETWEEN)
