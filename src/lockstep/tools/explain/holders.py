"""What keeps a process, whose program is over, from ending: its threads, an exit handler, its children.

Python first waits for all threads that are no daemons, then calls the exit handlers, last registered first; that of
``multiprocessing`` waits for all children that are no daemons.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import takewhile
from types import FrameType
from typing import Any

from lockstep.base.tracebacks.frames import Frame, owner
from lockstep.tools.explain.frames import name_of, stack_of

THREAD, EXECUTOR, HANDLER, CHILD, PROGRAM, QUEUE = "thread", "executor", "handler", "child", "program", "queue"
CLOSING = "closing"
"""Kinds of holders: a child is one of ``multiprocessing``, a program one of ``subprocess``; ``CLOSING`` is lockstep's own exit
handler, which closes the run."""
_WORKER = "/launch/worker.py"
_MOST, _MOST_FRAMES = 4, 10
_THREADS = "/threading.py"
_FUTURES = "/concurrent/futures/"
_POOL = f"{_FUTURES}process.py"
_CHILDREN, _QUEUES = "/multiprocessing/process.py", "/multiprocessing/queues.py"
_PROGRAMS = "/subprocess.py"
_MOST_OF_COMMAND = 60


def holders_of(thread_id: int) -> list[dict[str, Any]]:
    """What keeps this process, as values of JSON: ``kind``; ``what`` it is, in words; ``pid`` of a child, else None; and the
    ``stack`` that shows what it does, innermost frame first. Empty: nothing is known to.

    ``thread_id``: of the main thread, whose program is over.
    """
    stacks = sys._current_frames()
    frames = list(_outwards(stacks.get(thread_id)))
    if not frames:
        return []
    if any(_is_at(frame, _THREADS, "_shutdown") for frame in frames):
        found = _threads(thread_id, stacks)
        return found[:_MOST]
    file, name = frames[-1].f_code.co_filename, frames[-1].f_code.co_name
    if any(_is_at(frame, _WORKER, "run_worker") for frame in frames):
        return []  # what called the program has not returned yet
    awaited = next(filter(None, map(_awaited, frames)), None)
    if owner(file) == "lockstep":
        return [_holder(CLOSING, "closing the run", frames[0])]
    if any(_is_at(frame, _QUEUES, "_finalize_join") for frame in frames):
        return [_holder(QUEUE, "a multiprocessing.Queue with items that nobody takes", None)]
    if awaited is not None and owner(file) == "plumbing":  # the handler of multiprocessing
        return [awaited]
    return [_holder(HANDLER, f"exit handler `{name}`", frames[0]), *([awaited] if awaited is not None else [])]


def holder_in(stack: Sequence[Frame]) -> dict[str, Any]:
    """The same of a process that does not report what keeps it, since C code holds its interpreter, from the stack of its main
    thread. Pure."""
    return {"kind": HANDLER, "what": f"exit handler `{stack[-1][2]}`", "pid": None, "stack": stack}


def without_start(stack: Sequence[Sequence[Any]]) -> list[Frame]:
    """The stack of a child that is a fork, without that of its parent up to the fork. Pure."""
    frames = [(str(file), int(line), str(name)) for file, line, name in stack]
    return list(takewhile(lambda frame: not (frame[2] == "_bootstrap" and frame[0].endswith(_CHILDREN)), frames))


def has_no_task(stack: Sequence[Frame]) -> bool:
    """Whether a child with this stack is an executor's and waits for its next call: it is not what is waited for. Pure."""
    return any(name == "_process_worker" and file.endswith(_POOL) for file, _, name in stack) and any(
        file.endswith(_QUEUES) for file, _, _ in stack
    )


def _threads(thread_id: int, stacks: dict[int, FrameType]) -> list[dict[str, Any]]:
    found = []
    for thread in threading.enumerate():
        if thread.daemon or thread.ident == thread_id or not thread.is_alive():
            continue
        frames = list(_outwards(stacks.get(thread.ident or 0)))
        if any(frame.f_code.co_filename.endswith(_POOL) for frame in frames):
            found += _pool_of(thread, frames)
        else:
            is_pooled = any(_FUTURES in frame.f_code.co_filename for frame in frames)
            what = f"thread `{name_of(thread)}`{' of an executor' if is_pooled else ''}"
            found.append(_holder(EXECUTOR if is_pooled else THREAD, what, frames[0] if frames else None))
    return found


def _pool_of(thread: threading.Thread, frames: Sequence[FrameType]) -> list[dict[str, Any]]:
    """The processes of a pool, which its managing thread waits for."""
    processes = getattr(thread, "processes", None)  # of a private class; without it the thread itself is named
    pids = sorted(processes) if isinstance(processes, dict) else []
    if not pids:
        return [_holder(EXECUTOR, f"thread `{thread.name}` of an executor", frames[0])]
    return [_holder(EXECUTOR, f"child process {pid} of an executor", None, pid) for pid in pids]


def _awaited(frame: FrameType) -> dict[str, Any] | None:
    """What a frame of the standard library waits for: another thread, or a child."""
    target: Any = frame.f_locals.get("self")
    with contextlib.suppress(Exception):  # an object that the script has made may do anything
        if _is_at(frame, _THREADS, "join") and isinstance(target, threading.Thread):
            return _holder(THREAD, f"thread `{name_of(target)}`", sys._current_frames().get(target.ident or 0))
        if _is_at(frame, _CHILDREN, "join"):
            return _holder(CHILD, f"child process {target.pid} (`{target.name}`)", None, int(target.pid))
        if _is_at(frame, _PROGRAMS, "wait") or _is_at(frame, _PROGRAMS, "communicate"):
            command = target.args if isinstance(target.args, str) else shlex.join(map(str, target.args))
            return _holder(PROGRAM, f"child process {target.pid} (`{command[:_MOST_OF_COMMAND]}`)", None, int(target.pid))
    return None


def _holder(kind: str, what: str, frame: FrameType | None, pid: int | None = None) -> dict[str, Any]:
    stack: list[Frame] = stack_of(frame)[:_MOST_FRAMES]
    return {"kind": kind, "what": what, "pid": pid, "stack": stack}


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_at(frame: FrameType, file: str, name: str) -> bool:
    return frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file)
