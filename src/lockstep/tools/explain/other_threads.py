"""Where the other threads of a process are: its main thread may wait for a lock, a queue or the end of one of them."""

from __future__ import annotations

import sys
import threading

from lockstep.tools.explain.frames import name_of, stack_of, users_location

_MOST = 3


def other_threads(thread_id: int) -> list[str]:
    """In a line each, threads of this process that run the script's code.

    ``thread_id``: of a thread of this process, which is left out.
    """
    stacks = sys._current_frames()
    places = [
        (name_of(thread), users_location(stack_of(stacks.get(thread.ident or 0))))
        for thread in threading.enumerate()
        if thread.ident != thread_id
    ]
    return [f"its thread `{name}` is at {place}" for name, place in places if place][:_MOST]
