"""A run that waits to be killed: ``lockstep verify`` resumes it from a known step."""

from __future__ import annotations

import threading

from lockstep.listener import Listener
from lockstep.recovery.saving import Saver


class HeldRun(Listener):
    """Waits once the first checkpoint is on disk and one more step was taken, which is lost.

    Args:
        saver: saves the checkpoints.
    """

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def tick(self, step: int) -> None:
        """Wait for ever, unless the checkpoint could not be written: then the run goes on. Called on every rank."""
        if self._saver.num_saved and self._saver.settle():
            threading.Event().wait()
