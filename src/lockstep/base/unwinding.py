"""Whether a loop is being left by an error: asked by its iterator, as that is dropped.

A ``for`` loop drops its iterator in the same way after ``break`` and after an error, and Python shows an error that is on its
way through a frame to nobody: ``sys.exc_info()`` has it only once a handler is reached. But such an error has left a traceback
that ends at the very instruction where the frame stands, and after ``break`` a frame stands at an instruction that raises
nothing. So both are told apart by what there is, whatever the loop or the error.
"""

from __future__ import annotations

import gc
import inspect
from types import FrameType, TracebackType


def frame_left_by_error(frame: FrameType | None) -> FrameType | None:
    """The frame whose loop is being left by an error; None: the iterator is dropped for another reason, such as ``break``.

    It looks at all objects that Python's garbage collector knows (some hundredths of a second), so it is for what happens once.

    Args:
        frame: the one in which the iterator is being dropped. If that is a generator being closed (as tqdm's, around the
            iterator), the frame that drops the generator is asked in turn.
    """
    objects = gc.get_objects()
    tracebacks = [each for each in objects if type(each) is TracebackType]
    errors = [each for each in objects if issubclass(type(each), BaseException)]
    while frame is not None:
        here = [trace for trace in tracebacks if trace.tb_frame is frame and trace.tb_lasti == frame.f_lasti]
        if not here:
            return None
        # (Python 3.11 makes the object of an error that C code raises only when a handler needs it.)
        kinds = {type(error) for error in errors if any(error.__traceback__ is trace for trace in here)}
        if not frame.f_code.co_flags & inspect.CO_GENERATOR or kinds - {GeneratorExit}:
            return frame
        frame = frame.f_back
    return None
