"""The end of a run whose script ends without closing it: as the process exits."""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Callable
from multiprocessing.util import Finalize

from typing_extensions import override

from lockstep._listener import Listener, Stage


class AtExit(Listener):
    """The close of the run at exit, before the exit handlers that other libraries had registered
    when training began.

    Python calls exit handlers in reverse order, and a tracker's library registers its own when it
    is opened, at the beginning of the first pass: it would be closed before the last values are
    written to it.
    """

    stage = Stage.LATE

    def __init__(self) -> None:
        self._act: Callable[[], None] | None = None

    def call(self, act: Callable[[], None]) -> None:
        """Registers the function that closes the run as the process exits. It must not raise."""
        self._act = act
        atexit.register(act)
        # multiprocessing children do not run atexit callbacks
        if multiprocessing.parent_process() is not None:
            Finalize(None, act, exitpriority=100)

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        # this listener is the last one, so trackers are open by now
        if (act := self._act) is not None:
            atexit.unregister(act)
            atexit.register(act)

    def cancel(self) -> None:
        """Unregisters the function: the run has been closed."""
        if self._act is not None:
            atexit.unregister(self._act)
            self._act = None
