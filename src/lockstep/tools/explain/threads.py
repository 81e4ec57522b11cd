"""What threads are at, in words: what one is doing, the exception that it handles, and where the others are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from lockstep.base.tracebacks.frames import Frame
from lockstep.tools.explain.frames import name_of, stack_of, stack_of_error, users_location

_MOST_CHARACTERS = 200
"""Of the message of an exception."""
_MOST_THREADS = 3


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


def other_threads(thread_id: int) -> list[str]:
    """In a line each, threads of this process that run the script's code: the main thread may wait for a lock, a queue or the
    end of one of them.

    ``thread_id``: of a thread of this process, which is left out.
    """
    stacks = sys._current_frames()
    places = [
        (name_of(thread), users_location(stack_of(stacks.get(thread.ident or 0))))
        for thread in threading.enumerate()
        if thread.ident != thread_id
    ]
    return [f"its thread `{name}` is at {place}" for name, place in places if place][:_MOST_THREADS]
