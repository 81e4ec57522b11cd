"""The exception that another thread of this process is handling, in a ``finally`` or ``except``."""

from __future__ import annotations

import sys

from lockstep.tools.explain.frames import stack_of_error, users_location

_MOST = 200
"""Characters of its message."""


def handled_by(thread_id: int) -> str:
    """In one line: its type, message and where it was raised; empty: the thread handles none."""
    # As documented and as special as ``sys._current_frames``. Before Python 3.12 the values are those of ``sys.exc_info``.
    active = sys._current_exceptions().get(thread_id)
    error = active[1] if isinstance(active, tuple) else active
    if error is None:
        return ""
    try:
        message = next(iter(str(error).splitlines()), "")[:_MOST]
    except Exception:  # a user's __str__ may do anything
        message = ""
    location = users_location(stack_of_error(error))
    return f"{type(error).__name__}{f': {message}' if message else ''}{f' ({location})' if location else ''}"
