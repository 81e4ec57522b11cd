"""What a thread of this process waits for from another one: a lock, a queue, the end of a thread; and who that is, as far as
Python knows it.

An RLock knows the thread that holds it, a Lock does not. A thread that waits for one by ``with`` or ``acquire()`` has no frame
there: its line of code names the lock.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

from lockstep.base.tracebacks.frames import name_of, stack_of, users_location
from lockstep.world.machine.sizes import counted

_THREADS, _QUEUES = "/threading.py", "/queue.py"
_NAMES = re.compile(r"\bwith\s+(.+?):\s*(?:#|$|\S)|([A-Za-z_][\w.]*)\.acquire\(")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_OWNER = re.compile(r"RLock object owner=(\d+)")
_PLAIN, _REENTRANT = type(threading.Lock()), type(threading.RLock())
_MOST_THREADS = 3
_MOST_CALLERS = 6


def awaited_by(thread_id: int) -> list[str]:
    """In lines: what a thread that does not move waits for, and who has it. Empty: it is not known to wait for another thread.

    ``thread_id``: of a thread of this process.
    """
    stacks = sys._current_frames()
    frame = stacks.get(thread_id)
    for _ in range(_MOST_CALLERS):
        if frame is None:
            return []
        with contextlib.suppress(Exception):  # objects of the script may do anything
            if found := _at(frame, thread_id, stacks):
                return found
        if not frame.f_code.co_filename.endswith((_THREADS, _QUEUES)):
            return []
        frame = frame.f_back
    return []


def _at(frame: FrameType, thread_id: int, stacks: Mapping[int, FrameType]) -> list[str]:
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    target: Any = frame.f_locals.get("self")
    if file.endswith(_QUEUES):
        if name == "join":
            return [f"it waits for task_done() on a queue, for {counted(target.unfinished_tasks, 'task')}"]
        if name in ("get", "put"):
            return ["it waits for an item in an empty queue" if name == "get" else "it waits for room in a full queue"]
    if file.endswith(_THREADS):
        if name == "join" and isinstance(target, threading.Thread):
            return [f"it waits for the end of thread `{name_of(target)}`{_location(target.ident, stacks)}"]
        if name in ("__enter__", "acquire") and isinstance(target, threading.Condition):
            return _lock("a Condition", target, thread_id, stacks)
        if isinstance(target, threading.Event):
            return ["it waits until an Event is set"]
        return []
    for text, lock in _named_in(frame):
        if isinstance(lock, (_PLAIN, _REENTRANT, threading.Condition)):
            kind = "Lock" if isinstance(lock, _PLAIN) else "RLock" if isinstance(lock, _REENTRANT) else "Condition"
            return _lock(f"the {kind} `{text}`", lock, thread_id, stacks)
    return []


def _lock(what: str, lock: object, thread_id: int, stacks: Mapping[int, FrameType]) -> list[str]:
    if isinstance(lock, _PLAIN) and not lock.locked():
        return []
    if (owner := _OWNER.search(repr(lock))) is not None:
        ident = int(owner[1])
        if ident in (0, thread_id):
            return []
        return [f"it waits for {what}, which thread `{_name(ident)}` holds{_location(ident, stacks)}"]
    lines = [f"it waits for {what}; Python does not know which thread holds it"]
    others = [thread for thread in threading.enumerate() if thread.ident != thread_id and _location(thread.ident, stacks)]
    return lines + [
        f"  thread `{name_of(thread)}` is{_location(thread.ident, stacks).lstrip(',')}" for thread in others[:_MOST_THREADS]
    ]


def _named_in(frame: FrameType) -> list[tuple[str, object]]:
    """The objects that a line of code enters by ``with``, or acquires, as far as names and attributes lead to them."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    found = []
    for entered, acquired in _NAMES.findall(line):
        for text in _DOTTED.findall(entered or acquired):
            first, *attributes = text.split(".")
            value: Any = frame.f_locals.get(first, frame.f_globals.get(first))
            for attribute in attributes:
                if attribute == "acquire":
                    break
                value = _attribute(value, attribute)
            if value is not None:
                found.append((text, value))
    return found


def _attribute(value: Any, name: str) -> Any:
    """An attribute that is simply there: no code of the script runs."""
    for home in (value, *type(value).__mro__):
        names = getattr(home, "__dict__", {})
        if name in names:
            return names[name]
    return None


def _name(ident: int) -> str:
    return next((name_of(thread) for thread in threading.enumerate() if thread.ident == ident), str(ident))


def _location(ident: int | None, stacks: Mapping[int, FrameType]) -> str:
    """Where in the user's code a thread is, as a clause; empty: in none."""
    location = users_location(stack_of(stacks.get(ident or 0)))
    return f", at {location}" if location else ""
