"""Starts the debugger in the body of the loop over ``batch.shards``, in the step that is replayed."""

from __future__ import annotations

import pdb
import sys
from types import FrameType
from typing import Any

from typing_extensions import override

from lockstep.base.tracebacks.frames import OURS
from lockstep.listener import Listener, Stage
from lockstep.plan.shards import MicroStep


class Breakpoint(Listener):
    """Stops once, in the first step that it is notified of.

    Args:
        shard: the shard to stop in; None: the first one.
    """

    stage = Stage.LATE

    def __init__(self, shard: int | None) -> None:
        self._shard = shard
        self._has_stopped = False

    @override
    def received(self, micro: MicroStep, data: Any) -> None:
        if not self._has_stopped and self._shard in (None, micro.shard):
            self._has_stopped = True
            _Debugger().set_trace(_frame_of_script())


class _Debugger(pdb.Pdb):
    """Stops at the next line of a given frame: the first of the loop's body, where the batch has been assigned."""

    def set_trace(self, frame: FrameType | None = None) -> None:
        """See pdb."""
        self._begins_in = frame
        super().set_trace(frame)

    def set_step(self) -> None:
        """See bdb, which would stop in the next function called, here in lockstep."""
        frame, self._begins_in = self._begins_in, None
        if frame is None:
            super().set_step()
        else:
            self.set_next(frame)

    set_stepinstr = set_step  # Python 3.13 calls this one

    def set_quit(self) -> None:
        """See bdb. Quitting the debugger is not a failure."""
        raise SystemExit(0)


def _frame_of_script() -> FrameType:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    assert frame is not None
    return frame
