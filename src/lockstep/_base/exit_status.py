"""How a script has ended, as far as an exit handler can know it.

Python tells exit handlers nothing. An uncaught error can be found in ``sys.last_value``, but
``SystemExit`` leaves no trace: it no longer exists when they are called. So the status is noted
when the script asks for it (``sys.exit``, ``exit``, ``quit``, and by names that running modules
have imported for them), and the frame of the main module says whether that came to its own end,
whatever ``SystemExit`` was caught before. What remains unknown (``raise SystemExit(1)``) is said to
be unknown."""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import multiprocessing
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_WAYS_OUT = ((sys, "exit"), (builtins, "exit"), (builtins, "quit"))


class ScriptEnd(enum.Enum):
    """How a script has ended."""

    WELL = "with status 0"
    FAILED = "with another status"
    UNKNOWN = "with a status that is not known"


def is_success(code: object) -> bool:
    """Whether a process that raises ``SystemExit`` with this code ends with status 0."""
    return code is None or (isinstance(code, int) and code == 0)


def tell(code: object) -> None:
    """The program of this process has ended, with this code of ``SystemExit``: from the launcher,
    which has seen it."""
    global _told
    _told = is_success(code)


_told: bool | None = None


_asked: bool | None = None
"""Whether the status that the script has asked for last is that of a success; None: it has asked
for none."""
_asked_at: tuple[str, int, str] | None = None
"""The file, line and function of the script that have asked for it."""
_replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
"""Where Python's functions were put by: the names of a module, one of them, what it named, and what
it names now."""


def note_exits() -> None:
    """Note what the script asks ``sys.exit``, ``exit`` and ``quit`` for, from now on. May be called
    again.

    ``sys.exit(main())`` looks the function up before it calls ``main``: so this is called when
    lockstep is imported, too."""
    running = _running_modules()
    for module, name in _WAYS_OUT:
        current = getattr(module, name, None)  # ``python -S`` has no exit and quit
        if current is None:
            continue
        known = {id(noting): (original, noting) for _, _, original, noting in _replaced}
        if id(current) in known:
            original, noting = known[id(current)]
        else:
            original, noting = current, _noting(current)
            _replace(vars(module), name, original, noting)
        for names in running:  # from sys import exit
            for own in [own for own, value in names.items() if value is original]:
                _replace(names, own, original, noting)


def _replace(names: dict[str, Any], name: str, original: Any, noting: Any) -> None:
    names[name] = noting
    _replaced.append((names, name, original, noting))


def _noting(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave, updated=())
    def noting(code: Any = None, /) -> Any:
        global _asked, _asked_at
        # of another thread it ends that alone
        if threading.current_thread() is threading.main_thread():
            _asked, _asked_at = is_success(code), _users_line(sys._getframe(1))
        return leave(code)

    return noting


def asked_at() -> str:
    """Where the script has called ``sys.exit`` last, as ``FILE:LINE in FUNCTION``; empty:
    nowhere."""
    return "" if _asked_at is None else "{}:{} in {}".format(*_asked_at)


def _users_line(caller: FrameType) -> tuple[str, int, str] | None:
    from lockstep._base.tracebacks.frames import (
        users_frame,  # not where this module is all that is imported: pytest's plug-in
    )

    frame = users_frame(caller)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class ExitStatus:
    """Knows how the script ends, from its creation to ``end``."""

    def __init__(self) -> None:
        global _asked, _asked_at
        note_exits()
        _asked = _asked_at = None
        self._program = _program_frame()

    def end(self) -> None:
        """Put Python's own functions back. May be called again."""
        for names, name, original, noting in _replaced:
            if names.get(name) is noting:  # else the script has put another there
                names[name] = original
        _replaced.clear()

    def now(self) -> ScriptEnd:
        """How the script has ended; to be asked in an exit handler, for an error that has left no
        ``sys.last_value``."""
        if _told is not None:
            return ScriptEnd.WELL if _told else ScriptEnd.FAILED
        if self._program is not None and _has_returned(self._program):
            return ScriptEnd.WELL
        error = sys.exc_info()[1]
        if error is not None and multiprocessing.parent_process() is not None:  # until 3.12
            return ScriptEnd.WELL if _is_success(error) else ScriptEnd.FAILED
        if _asked is not None:
            return ScriptEnd.WELL if _asked else ScriptEnd.FAILED
        return ScriptEnd.UNKNOWN


def _is_success(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and is_success(error.code)


def _running_modules() -> list[dict[str, Any]]:
    """The names in each module that has a function under way, and in the main module."""
    modules = {id(vars(main)): vars(main)} if (main := sys.modules.get("__main__")) is not None else {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        modules[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    return list(modules.values())


def _program_frame() -> FrameType | None:
    """The frame of the main module, or in a child of multiprocessing that of its process's ``run``;
    None: neither runs. (It holds no more than these do.)"""
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else None
    run = getattr(type(multiprocessing.current_process()).run, "__code__", None)
    is_child = multiprocessing.parent_process() is not None
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    found = None
    while frame is not None:
        is_main = frame.f_globals is main and frame.f_code.co_name == "<module>"
        if frame.f_code is run if is_child else is_main:
            found = frame
        frame = frame.f_back
    return found


def _has_returned(frame: FrameType) -> bool:
    """Whether a frame's last instruction is the one that returns: it came to its end, and no error
    has left it."""
    return frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


note_exits()
