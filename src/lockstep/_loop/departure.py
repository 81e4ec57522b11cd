"""How this process has left its loop over a prepared loader, before the loader's end.

Python drops an iterator in the same way after ``break``, ``return``, an error or ``sys.exit``. The
difference is worth knowing for messages (``break`` on one rank and an error on another have
different remedies), and can be seen in the frame that drops it::

    the frame's instruction                  a traceback that ends at it    cause
    of a `break` or `return` statement       -                              break, return
    any other                                yes                            exception, sys.exit
    any other                                no                             unknown

Nothing that a run computes depends on it."""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType

from lockstep._base import exit_status
from lockstep._base.tracebacks.frames import owner, users_frame

EXCEPTION, EXIT, ENDED, PASSED_OVER = "exception", "sys.exit", "its own end", "continue"
_STATEMENTS = ("break", "return")


@dataclass(frozen=True)
class Departure:
    """The end of a pass over a prepared loader on one rank. Plain values: a black box records
    them."""

    step: int
    """The last step that counts."""
    cause: str
    """The cause: ``break``, ``return``, ``sys.exit``, ``exception``; ``its own end``: the loader
    has no more batches; ``continue``: it is not left, but the step had no loop over
    ``batch.shards``. Empty: unknown (the script has dropped an iterator)."""
    place: str
    """The script's line, as ``train.py:9 in main``; empty: unknown."""
    next_step: int
    """The step of the phase that would have come next."""
    next_phase: int
    """The number of phases before it in that step."""


def departure(step: int, comes_next: tuple[int, int], *, exhausted: bool) -> Departure:
    """Returns how the loop is being left. Called by its iterator as that ends or is dropped. Never
    raises.

    Args:
        step: the last one that counts.
        comes_next: the step of the phase that would have come next, and the number of phases before
            it in that.
        exhausted: whether the loader has no more batches.
    """
    cause, place = ENDED if exhausted else "", ""
    # For messages only: whatever fails here must not end a run.
    with contextlib.suppress(Exception):
        if (frame := users_frame(sys._getframe(1))) is not None:
            place = _place(frame.f_code, frame.f_lineno)
            if not exhausted and not (cause := _statement(frame)):
                cause, place = _error_in(frame) or ("", place)
    return Departure(step, cause, place, *comes_next)


def passed_over(step: int) -> Departure:
    """Returns the departure of a step whose shards the script has not run, as its loop asks for the
    next."""
    frame = users_frame(sys._getframe(1))
    return Departure(step, PASSED_OVER, "" if frame is None else _place(frame.f_code, frame.f_lineno), step, 0)


def _place(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} in {code.co_name}"


def _statement(frame: FrameType) -> str:
    """Returns the statement at whose instruction a frame is, if it leaves a loop; otherwise an
    empty string."""
    # Instructions are 2 bytes, and co_positions() has an entry for each. A `break` drops the
    # iterator at an instruction whose position is the statement itself, in a line that may contain
    # others.
    first, _, begin, _ = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    text = linecache.getline(frame.f_code.co_filename, first or frame.f_lineno)
    words = (text.encode()[begin:].decode(errors="replace") if begin is not None else text).split(maxsplit=1)
    return next((word for word in _STATEMENTS if words and words[0].rstrip(";") == word), "")


def _error_in(frame: FrameType) -> tuple[str, str] | None:
    """Returns the cause and the place of the error that is leaving a frame; None: no error is.

    Such an error has left a traceback that ends at the very instruction where the frame is
    (``base.unwinding``). This looks at all objects that Python's garbage collector knows."""
    traces = (each for each in gc.get_objects() if type(each) is TracebackType)
    trace = next((each for each in traces if each.tb_frame is frame and each.tb_lasti == frame.f_lasti), None)
    if trace is None:
        return None
    # From the frame of the loop to where the error was raised: the user's innermost line is its
    # place. ``exit`` and ``quit`` raise in Python's code, below the functions that note the status.
    inner, users, is_exit = trace, trace, False
    while inner.tb_next is not None:
        inner = inner.tb_next
        file = inner.tb_frame.f_code.co_filename
        is_exit = is_exit or file == exit_status.__file__
        if owner(file) == "user":
            users = inner
    return EXIT if is_exit else EXCEPTION, _place(users.tb_frame.f_code, users.tb_lineno)
