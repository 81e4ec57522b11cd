"""What a thread is at, in words: what it is doing, and the exception that it handles."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lockstep.base.tracebacks.frames import Frame
from lockstep.tools.explain.frames import stack_of_error, users_location

_MOST_CHARACTERS = 200
"""Of the message of an exception."""


def doing_at(stack: Sequence[Frame]) -> str:
    """What a thread with this stack, innermost frame first, is doing in a script that does not use lockstep, which says nothing
    of it."""
    return next((doing for file, _, name in stack if (doing := _doing(file, name))), "in the script")


def _doing(file: str, name: str) -> str:
    """Empty: the frame does not tell."""
    if "/torch/" not in file:
        return ""
    if "/torch/utils/data/" in file:
        return "getting a batch from the loader"
    if name == "_engine_run_backward":
        return "in the backward pass"
    if "/torch/optim/" in file:
        return "in the script"
    is_call = file.endswith("/torch/nn/modules/module.py") and name.endswith("_call_impl")
    return "in the forward pass" if is_call else ""


def handled_by(thread_id: int) -> str:
    """The exception that another thread of this process is handling, in a ``finally`` or ``except``, in one line: its type,
    message and where it was raised; empty: none."""
    # As documented and as special as ``sys._current_frames``. Before Python 3.12 the values are those of ``sys.exc_info``.
    active = sys._current_exceptions().get(thread_id)
    error = active[1] if isinstance(active, tuple) else active
    if error is None:
        return ""
    try:
        message = next(iter(str(error).splitlines()), "")[:_MOST_CHARACTERS]
    except Exception:  # a user's __str__ may do anything
        message = ""
    location = users_location(stack_of_error(error))
    return f"{type(error).__name__}{f': {message}' if message else ''}{f' ({location})' if location else ''}"
