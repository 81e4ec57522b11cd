"""What a thread of this process waits for from others of it: a lock, a thread's end, a worker of a
``multiprocessing`` pool.

Waiting for a lock is a C call without a frame, so the lock is found in two steps. The bytecode
position of the innermost frame gives the expression that is entered or acquired
(``file_calls.acquired``), and its names lead to the object through the frame's variables. An RLock
knows its holder. A Lock does not, so its holder is the thread whose stack is inside
the body of a ``with`` statement on the same object::

    thread A:  with self.lock:      thread B:  with self.lock:   <- blocked here: the expression
                   upload()  <- inside the body of a `with` on the same object: the holder

No code of the script runs: attributes are read from ``__dict__``, not by ``getattr``, since a
property may do anything.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.pool import Pool
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep._base.tracebacks.frames import owner
from lockstep._tools.explain.file_calls import acquired
from lockstep._tools.explain.file_locks import FLOCK, polled_file
from lockstep._tools.explain.frames import name_of, stack_of, users_location
from lockstep._world.machine.sizes import counted

LOCK, THREAD, POOL = "lock", "thread", "pool"
"""The kinds of things that a thread waits for."""
_THREADING, _POOL = "/threading.py", "/multiprocessing/pool.py"
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_OWNER = re.compile(r"RLock object owner=(\d+)")
_KINDS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
_TICKS = 5
"""The ticks of the kernel's clock (100 a second) within which a pool's first workers start: they
start just before the thread that replaces them."""
_MOST_THREADS = 3
_MOST_FRAMES = 30


def awaited_by(thread_id: int) -> dict[str, str]:
    """What a thread that does not move waits for: the ``kind``; the ``words`` for the user; the
    ``holder``, the name of the thread that has a lock or is waited for; and the ``file`` whose lock
    is requested again and again. Empty: unknown.

    ``thread_id``: of a thread of this process.
    """
    if file := polled_file(thread_id):
        return {"kind": FLOCK, "words": f"it keeps requesting the lock of {file}", "file": file}
    stacks = sys._current_frames()
    frames = list(_outwards(stacks.get(thread_id)))
    with contextlib.suppress(Exception):  # objects of the script may be anything
        for frame in frames:
            file, name, own = frame.f_code.co_filename, frame.f_code.co_name, frame.f_locals.get("self")
            if file.endswith(_THREADING):
                if name == "join" and isinstance(own, threading.Thread):
                    words = f"it waits for {_described(own.ident, stacks)} to finish"
                    return {"kind": THREAD, "words": words, "holder": name_of(own)}
            elif file.endswith(_POOL):
                if lost := _lost_workers(own):
                    words = (
                        f"it waits for a multiprocessing pool of which {lost} died; their tasks are never finished "
                        "(concurrent.futures.ProcessPoolExecutor raises an error instead)"
                    )
                    return {"kind": POOL, "words": words}
            else:
                return _lock_at(frame, thread_id, stacks)
    return {}


def _lock_at(frame: FrameType, thread_id: int, stacks: Mapping[int, FrameType]) -> dict[str, str]:
    """The lock that a line of the script waits for."""
    for text, lock in _values(frame, acquired(frame.f_code, frame.f_lasti)):
        if not isinstance(lock, _KINDS) or "unlocked" in repr(lock):
            continue
        if found := _OWNER.search(repr(lock)):
            holders = [int(found[1])]
        else:
            holders = [ident for ident, stack in stacks.items() if _is_within(lock, stack, is_asking=ident == thread_id)]
        words = f"it waits for `{text}`"
        if holders == [thread_id]:
            words += ", which it has already acquired itself"
        elif holders:
            words += f"; {_described(holders[0], stacks)} has it"
        else:
            words += "; its holder is unknown" + _others(thread_id, stacks)
        return {"kind": LOCK, "words": words, **({"holder": _name(holders[0])} if holders else {})}
    return {}


def _is_within(lock: object, frame: FrameType | None, *, is_asking: bool) -> bool:
    """Whether a thread is within a ``with`` of this very lock. ``is_asking``: it waits for it in
    its innermost frame, which is left out."""
    for number, each in enumerate(_outwards(frame)):
        if owner(each.f_code.co_filename) != "user" or (is_asking and number == 0):
            continue
        for first, last, text in _withs(each.f_code.co_filename):
            if first <= each.f_lineno <= last and any(value is lock for _, value in _values(each, text)):
                return True
    return False


@functools.lru_cache(maxsize=32)
def _withs(file: str) -> tuple[tuple[int, int, str], ...]:
    """The ``with`` statements of a source file: the first and the last line of each body, and what
    it enters."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (
            node.body[0].lineno,
            node.end_lineno or node.lineno,
            ", ".join(ast.unparse(item.context_expr) for item in node.items),
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
    )


def _values(frame: FrameType, code: str) -> Iterator[tuple[str, object]]:
    """The objects that are named in code, as far as names and attributes lead to them."""
    for text in _DOTTED.findall(code):
        first, *attributes = text.split(".")
        value: Any = frame.f_locals.get(first, frame.f_globals.get(first))
        for attribute in attributes:
            value = _attribute(value, attribute)
        if value is not None:
            yield text, value


def _attribute(value: Any, name: str) -> Any:
    """An attribute that is simply there: no code of the script runs."""
    homes = (value, *type(value).__mro__)
    return next((names[name] for home in homes if name in (names := getattr(home, "__dict__", {}))), None)


def _lost_workers(waiting: object) -> str:
    """The number of dead workers, as text, of the pool for whose result a thread waits; empty: none
    is known.

    A pool replaces dead workers and forgets them, so they are counted by their replacements:
    workers that are younger than the thread that replaces. The attributes are private;
    test_locks.py fails when they move.
    """
    pool = getattr(waiting, "_pool", None)
    if not isinstance(pool, Pool) or pool._maxtasksperchild is not None:  # type: ignore[attr-defined]
        return ""  # else its workers are replaced as they end
    since = _started(f"self/task/{pool._worker_handler.native_id}") + _TICKS  # type: ignore[attr-defined]
    lost = sum(_started(str(worker.pid)) > since for worker in pool._pool)  # type: ignore[attr-defined]
    return counted(lost, "worker") + (" has" if lost == 1 else " have") if lost else ""


def _started(task: str) -> int:
    """The start of a process or thread, in the kernel's clock ticks."""
    return int(Path("/proc", task, "stat").read_text().rpartition(")")[2].split()[19])


def _described(ident: int | None, stacks: Mapping[int, FrameType]) -> str:
    location = users_location(stack_of(stacks.get(ident or 0)))
    return f"thread `{_name(ident)}`{f' (at {location})' if location else ''}"


def _name(ident: int | None) -> str:
    return next((name_of(thread) for thread in threading.enumerate() if thread.ident == ident), str(ident))


def _others(thread_id: int, stacks: Mapping[int, FrameType]) -> str:
    """The other threads that run code of the script, as a clause."""
    idents = [thread.ident for thread in threading.enumerate() if thread.ident != thread_id]
    places = [_described(ident, stacks) for ident in idents if users_location(stack_of(stacks.get(ident or 0)))]
    return f" (other threads: {', '.join(places[:_MOST_THREADS])})" if places else ""


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
