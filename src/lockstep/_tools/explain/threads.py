"""What a thread does, for the user, the exception that it handles, and which threads have died of
one."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TypedDict

from lockstep._base.tracebacks.frames import Frame
from lockstep._tools.explain.frames import name_of, stack_of_error, users_location

_MOST_CHARACTERS = 200
"""The most characters of an exception's message."""


def doing_at(stack: Sequence[Frame]) -> str:
    """What a thread with this stack, innermost frame first, is doing in a script that does not use
    lockstep, which would know it."""
    return next((doing for file, _, name in stack if (doing := _doing(file, name))), "in the script")


def _doing(file: str, name: str) -> str:
    """What a thread with this frame does; empty: the frame does not show it."""
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
    """The exception that another thread of this process is handling, in a ``finally`` or
    ``except``, in one line: its type, message and where it was raised; empty: none."""
    # As documented and as special as ``sys._current_frames``. Before Python 3.12 the values are
    # those of ``sys.exc_info``.
    active = sys._current_exceptions().get(thread_id)
    error = active[1] if isinstance(active, tuple) else active
    return "" if error is None else _in_a_line(error)


def _in_a_line(error: BaseException) -> str:
    try:
        message = next(iter(str(error).splitlines()), "")[:_MOST_CHARACTERS]
    except Exception:  # a user's __str__ may do anything
        message = ""
    location = users_location(stack_of_error(error))
    return f"{type(error).__name__}{f': {message}' if message else ''}{f' ({location})' if location else ''}"


class DeadThread(TypedDict):
    """A thread that has died of an exception. Python prints that, and the other threads wait for
    what it no longer does."""

    thread: str
    error: str
    """The exception, in one line."""
    time_s: float
    """The time of its death, in seconds since 1970."""


_MOST_DEAD = 2
_dead: deque[DeadThread] = deque(maxlen=_MOST_DEAD)


def dead_threads() -> list[DeadThread]:
    """The latest of this process, since ``see_threads_die``."""
    return list(_dead)


def see_threads_die() -> None:
    """Note the exceptions of which threads die, from now on, and pass them on to the hook that
    there is. A hook that the script sets later takes this one's place."""
    before = threading.excepthook
    if getattr(before, "notes", None) is _dead:
        return

    def hook(args: threading.ExceptHookArgs) -> None:
        with contextlib.suppress(Exception):  # the exception itself matters more
            if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
                name = "?" if args.thread is None else name_of(args.thread)
                _dead.append(DeadThread(thread=name, error=_in_a_line(args.exc_value), time_s=time.time()))
        before(args)

    hook.notes = _dead  # type: ignore[attr-defined]
    threading.excepthook = hook


os.register_at_fork(after_in_child=_dead.clear)
