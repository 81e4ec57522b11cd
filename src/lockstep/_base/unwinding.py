"""Whether a loop is being left by an error: asked by its iterator, as that is dropped.

A ``for`` loop drops its iterator in the same way after ``break`` and after an error, and Python
shows an error that is on its way through a frame to nobody: ``sys.exc_info()`` has it only once a
handler is reached. But such an error has left a traceback that ends at the very instruction where
the frame stands, and after ``break`` a frame stands at an instruction that raises nothing. So both
are told apart by what there is, whatever the loop or the error.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from types import FrameType, TracebackType


def frame_left_by_error(frame: FrameType | None) -> FrameType | None:
    """The frame whose loop is being left by an error; None: the iterator is dropped for another
    reason, such as ``break``.

    It looks at all objects that Python's garbage collector knows (some hundredths of a second), so
    it is for what happens once.

    Args:
        frame: the one in which the iterator is being dropped. If that is a generator being closed
            (as tqdm's, around the iterator), the frame that drops the generator is asked in turn.
    """
    objects = gc.get_objects()
    tracebacks = [each for each in objects if type(each) is TracebackType]
    errors = [each for each in objects if issubclass(type(each), BaseException)]
    while frame is not None:
        here = [trace for trace in tracebacks if trace.tb_frame is frame and trace.tb_lasti == frame.f_lasti]
        if not here:
            return None
        # (Python 3.11 makes the object of an error that C code raises only when a handler needs
        # it.)
        kinds = {type(error) for error in errors if any(error.__traceback__ is trace for trace in here)}
        if not frame.f_code.co_flags & inspect.CO_GENERATOR or kinds - {GeneratorExit}:
            return frame
        frame = frame.f_back
    return None


def may_be_caught(frame: FrameType | None) -> bool:
    """Whether an error in the body of the ``for`` that is asking its iterator for an item might be
    caught outside of the loop, or that is not known. If not, a script that ends well has left the
    loop by ``break`` or ``return``.

    The handlers in force at the ``for`` are those around its body. What a ``with`` or ``finally``
    does with an error is not known, so they count as handlers; but not those of a generator that
    the ``for`` goes through, which the body's errors do not reach.

    Args:
        frame: the one that asks the iterator: that of the ``for``, or of a generator that the
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
            return False  # whatever runs the script does not continue it after an error
        frame = frame.f_back
    return False


def _is_covered(frame: FrameType) -> bool:
    """Whether a frame stands inside a ``try`` or ``with``. (What else handles errors, such as the
    end of a generator, begins by another instruction and raises them again.)"""
    code = frame.f_code
    return any(
        entry.start <= frame.f_lasti < entry.end and dis.opname[code.co_code[entry.target]] == "PUSH_EXC_INFO"
        for entry in dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    )
