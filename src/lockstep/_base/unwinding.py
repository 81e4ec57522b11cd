"""Detects whether a loop is being left by an error. Its iterator asks this while it is dropped.

Why it matters: after ``break`` out of the epochs, training is finished; after an error it is not,
and the same command must resume it. A ``for`` loop drops its iterator in the same way in both
cases, and Python does not show an error that is on its way through a frame: ``sys.exc_info()``
returns it only in a handler.

How the two are distinguished: an error leaves a traceback whose last instruction is the one at
which the frame is now. After ``break``, the frame is at an instruction that cannot raise. This
works for every loop and every error, without a hook in the script::

    for batch in loader:        frame.f_lasti --+
        raise ValueError   <--------------------+-- equal: left by an error
                                traceback.tb_lasti
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from types import FrameType, TracebackType


def frame_left_by_error(frame: FrameType | None) -> FrameType | None:
    """Returns the frame whose loop is being left by an error; None: the iterator is dropped for
    another reason, such as ``break``.

    The function looks at all objects that Python's garbage collector knows (some hundredths of a
    second), so call it for rare events only.

    Args:
        frame: the frame in which the iterator is being dropped. If that is a generator being closed
            (tqdm's, around the iterator), the frame that drops the generator is examined next.
    """
    objects = gc.get_objects()
    tracebacks = [each for each in objects if type(each) is TracebackType]
    # Not isinstance, which also asks for `__class__`: of a proxy that is a property, with its own
    # code.
    errors = [each for each in objects if issubclass(type(each), BaseException)]
    while frame is not None:
        here = [trace for trace in tracebacks if trace.tb_frame is frame and trace.tb_lasti == frame.f_lasti]
        if not here:
            return None
        # Python 3.11 creates the exception object of an error raised by C code only when a handler
        # needs it, so `kinds` may be empty although an error is on its way.
        kinds = {type(error) for error in errors if any(error.__traceback__ is trace for trace in here)}
        # GeneratorExit closes a generator in both cases, after `break` and after an error: only the
        # frame that drops the generator shows which.
        if not frame.f_code.co_flags & inspect.CO_GENERATOR or kinds - {GeneratorExit}:
            return frame
        frame = frame.f_back
    return None


def may_be_caught(frame: FrameType | None) -> bool:
    """Returns whether an error in the body of the ``for`` that is asking its iterator for an item
    might be caught outside of the loop; True also if that is unknown. If not, a script that exits
    with status 0 has left the loop by ``break`` or ``return``.

    The handlers in force at the ``for`` are the ones around its body. A ``with`` or ``finally`` may
    suppress an error, so both count as handlers. Handlers in a generator that the ``for`` goes
    through do not count, because errors of the body do not reach them.

    Args:
        frame: the frame that asks the iterator: that of the ``for``, or of a generator that the
            ``for`` goes through.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    if frame is None or not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("FOR_ITER"):
        return True  # taken by next(), list(): the items may be used anywhere
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else None
    while frame is not None:
        if _is_covered(frame):
            return True
        if frame.f_globals is main and frame.f_code.co_name == "<module>":
            return False  # the code that runs the script does not continue it after an error
        frame = frame.f_back
    return False


def _is_covered(frame: FrameType) -> bool:
    """Returns whether a frame is inside a ``try`` or ``with``. (Other entries of the exception
    table, such as the one at the end of a generator, begin with another instruction and raise the
    error again.)"""
    code = frame.f_code
    return any(
        entry.start <= frame.f_lasti < entry.end and dis.opname[code.co_code[entry.target]] == "PUSH_EXC_INFO"
        for entry in dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    )
