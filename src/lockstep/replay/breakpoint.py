"""A debugger in the body of the loop over ``batch.shards``, in the step that is replayed."""

from __future__ import annotations

import pdb
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import lockstep
from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep

_PACKAGE = Path(lockstep.__file__).parent


class Breakpoint(Listener):
    """Stops once, in the first micro-step of the first step that it is told of.

    Args:
        shard: in that of this shard; None: whichever comes first.
    """

    def __init__(self, shard: int | None) -> None:
        self._shard = shard
        self._has_stopped = False

    def received(self, micro: MicroStep, data: Any) -> None:
        """See Listener."""
        if not self._has_stopped and self._shard in (None, micro.shard):
            self._has_stopped = True
            # It stops at the next line of the script: the first of the loop's body, where the batch has its names.
            pdb.Pdb().set_trace(_frame_of_script())


def _frame_of_script() -> FrameType:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frame = frame.f_back
    assert frame is not None
    return frame
