"""Forks while a process group has threads, for example forks that start loader workers.

When a collective is done, the thread of Gloo that did it lets go of Python's tensors, for which it
registers itself with the interpreter. A process that is forked at that very moment inherits the
interpreter's list of threads as locked, and waits for ever before its first line of Python. CPython
fixed that in 3.11.8 and 3.12
(https://github.com/python/cpython/issues/112275); before those, a fork waits here until such
threads are at rest."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

FORKS_CAN_HANG = sys.version_info < (3, 11, 8)
_TASKS = Path("/proc/self/task")
_PATIENCE_S = 0.1
"""The longest wait, in seconds: a thread that works for longer has not just done a collective."""
_LOOK_EVERY_S = 0.0005

_is_guarded = False


def guard_forks() -> None:
    """Has every later fork of this process wait for threads that may be about to register. May be
    called again."""
    global _is_guarded
    if FORKS_CAN_HANG and not _is_guarded and _TASKS.is_dir():
        os.register_at_fork(before=wait_for_rest)
        _is_guarded = True


def wait_for_rest() -> None:
    """Waits until no thread runs that Python does not know. (The threads that it knows are
    registered already.)"""
    deadline = time.monotonic() + _PATIENCE_S
    while _unknown_thread_runs() and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)  # and lets go of Python's lock, which they may be waiting for


def _unknown_thread_runs() -> bool:
    # In a process that was itself forked, Python's record of the main thread's number may be that
    # of its parent.
    known = {str(threading.get_native_id()), *(str(thread.native_id) for thread in threading.enumerate())}
    for task in _TASKS.iterdir():
        if task.name not in known:
            with contextlib.suppress(OSError):  # it has ended
                # After the name, which is in parentheses and may contain more of them, and spaces.
                state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state == "R":
                    return True
    return False
