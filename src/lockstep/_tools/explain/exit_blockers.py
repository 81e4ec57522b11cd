"""What keeps a process from exiting after its program has finished: threads, a child, an exit
handler.

Python exits in a fixed order, and the main thread's stack shows how far it is: it waits for all
non-daemon threads, then calls the exit handlers, last registered first. The handler of
``multiprocessing`` waits for all non-daemon children.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from lockstep._base.tracebacks.frames import owner
from lockstep._tools.explain.frames import name_of, stack_of

THREAD, CHILD, HANDLER = "thread", "child", "handler"
CLOSING = "closing"
"""The kinds of blockers: a child is one of ``multiprocessing``; ``CLOSING`` is lockstep's exit
handler, which closes the run."""
_WORKER = "/_launch/worker.py"
_CHILDREN = "/multiprocessing/process.py"
_MOST, _MOST_FRAMES = 4, 10


def exit_blockers(thread_id: int) -> list[dict[str, Any]]:
    """What keeps this process from exiting, as JSON values: the ``kind``; ``what`` it is, for the
    user; and the ``stack`` that shows what it does, innermost frame first. Empty: nothing is known.

    ``thread_id``: the identity of the main thread, whose program has finished.
    """
    stacks = sys._current_frames()
    frames = list(_outwards(stacks.get(thread_id)))
    if not frames or any(_is_at(frame, _WORKER, "run_worker") for frame in frames):
        return []  # what called the program has not returned yet
    if owner(frames[-1].f_code.co_filename) == "lockstep":
        return [_holder(CLOSING, "closing the run", frames[0])]
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread.ident != thread_id]
    if threads:
        held = [_holder(THREAD, f"thread `{name_of(thread)}`", stacks.get(thread.ident or 0)) for thread in threads]
        return held[:_MOST]
    for frame in frames:
        if _is_at(frame, _CHILDREN, "join"):
            child: Any = frame.f_locals.get("self")
            return [_holder(CHILD, f"child process {child.pid} (`{child.name}`)", None)]
    return [_holder(HANDLER, f"exit handler `{frames[-1].f_code.co_name}`", frames[0])]


def _holder(kind: str, what: str, frame: FrameType | None) -> dict[str, Any]:
    return {"kind": kind, "what": what, "stack": stack_of(frame)[:_MOST_FRAMES]}


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_at(frame: FrameType, file: str, name: str) -> bool:
    return frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file)
