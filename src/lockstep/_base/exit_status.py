"""Determines how a script has exited, as far as an exit handler can know it.

Why it matters: a run whose script exits with status 0 is finished, and any other must be resumed by
the same command. ``Team.close`` runs as an exit handler, and Python passes no status to exit
handlers. An uncaught error is in ``sys.last_value``, but ``SystemExit`` leaves no trace: the
exception no longer exists when exit handlers run.

So two sources are combined:

- ``sys.exit``, ``exit`` and ``quit`` are wrapped, and note the status that the script asks for.
  Names that running modules have imported for these functions are replaced, too.
- The frame of the main module shows whether it returned: its last instruction is then the one that
  returns. That is certain even if the script caught an earlier ``SystemExit``.

``ExitStatus.now`` asks in this order, from certain to likely::

    the launcher has seen the end           its status             (tell)
    the main module's frame has returned    WELL
    a child of multiprocessing exits        its error's status     (until Python 3.12)
    sys.exit and the like were called       the status asked for last
    nothing is known                        UNKNOWN                (raise SystemExit(1))
"""

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
    """The ways in which a script can exit."""

    WELL = "with status 0"
    FAILED = "with another status"
    UNKNOWN = "with a status that is not known"


def is_success(code: object) -> bool:
    """Returns whether a process that raises ``SystemExit`` with this code exits with status 0."""
    return code is None or (isinstance(code, int) and code == 0)


def tell(code: object) -> None:
    """Notes that the program of this process has finished with this code of ``SystemExit``. The
    launcher, which has seen it, calls this."""
    global _told
    _told = is_success(code)


_told: bool | None = None


_asked: bool | None = None
"""Whether the status that the script last asked for is a success; None: it has not asked."""
_asked_at: tuple[str, int, str] | None = None
"""The file, line and function of the script that asked for the status."""
_replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
"""The names that were replaced: the module's variables, the name, the original function, and its
replacement."""


def note_exits() -> None:
    """Notes from now on which status the script passes to ``sys.exit``, ``exit`` and ``quit``. May
    be called again.

    ``sys.exit(main())`` looks ``sys.exit`` up before it calls ``main``, which may call ``join()``.
    So this is also called when lockstep is imported."""
    running = _running_modules()
    for module, name in _WAYS_OUT:
        current = getattr(module, name, None)  # ``python -S`` has no exit and quit
        if current is None:
            continue
        # At a second call `sys.exit` is the wrapper already. To wrap it again would note each exit
        # twice, and `end` would restore the inner wrapper instead of Python's function.
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
        # In another thread, sys.exit stops only that thread.
        if threading.current_thread() is threading.main_thread():
            _asked, _asked_at = is_success(code), _users_line(sys._getframe(1))
        return leave(code)

    return noting


def asked_at() -> str:
    """Returns where the script last called ``sys.exit``, as ``FILE:LINE in FUNCTION``; empty:
    nowhere."""
    return "" if _asked_at is None else "{}:{} in {}".format(*_asked_at)


def _users_line(caller: FrameType) -> tuple[str, int, str] | None:
    from lockstep._base.tracebacks.frames import (
        users_frame,  # not where this module is all that is imported: pytest's plug-in
    )

    frame = users_frame(caller)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class ExitStatus:
    """An observer of how the script exits, from its creation to ``end``."""

    def __init__(self) -> None:
        global _asked, _asked_at
        note_exits()
        _asked = _asked_at = None
        self._program = _program_frame()

    def end(self) -> None:
        """Restores Python's functions. May be called again."""
        for names, name, original, noting in _replaced:
            if names.get(name) is noting:  # otherwise the script has replaced it
                names[name] = original
        _replaced.clear()

    def now(self) -> ScriptEnd:
        """Returns how the script has exited. Call it in an exit handler, for an exit that has left
        no ``sys.last_value``."""
        if _told is not None:
            return ScriptEnd.WELL if _told else ScriptEnd.FAILED
        # Before the status that was asked for: a script may catch the SystemExit of sys.exit(1) and
        # finish.
        if self._program is not None and _has_returned(self._program):
            return ScriptEnd.WELL
        error = sys.exc_info()[1]
        if error is not None and multiprocessing.parent_process() is not None:  # until Python 3.12
            return ScriptEnd.WELL if _is_success(error) else ScriptEnd.FAILED
        if _asked is not None:
            return ScriptEnd.WELL if _asked else ScriptEnd.FAILED
        return ScriptEnd.UNKNOWN


def _is_success(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and is_success(error.code)


def _running_modules() -> list[dict[str, Any]]:
    """Returns the variables of the main module, and of each module with a function on the stack."""
    modules = {id(vars(main)): vars(main)} if (main := sys.modules.get("__main__")) is not None else {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        modules[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    return list(modules.values())


def _program_frame() -> FrameType | None:
    """Returns the frame of the main module, or in a child of multiprocessing the frame of its
    process's ``run``; None: neither is running. (The frame keeps no more objects alive than these
    do.)"""
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else None
    run = getattr(type(multiprocessing.current_process()).run, "__code__", None)
    is_child = multiprocessing.parent_process() is not None
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    found = None
    while frame is not None:
        is_main = frame.f_globals is main and frame.f_code.co_name == "<module>"
        if frame.f_code is run if is_child else is_main:
            # Not the first: the script may run code in its own namespace (exec), which is named so,
            # too.
            found = frame
        frame = frame.f_back
    return found


def _has_returned(frame: FrameType) -> bool:
    """Returns whether a frame's last instruction returned: the function finished without an
    error."""
    # A frame that was left by an error stays at the instruction that raised it.
    return frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


note_exits()
