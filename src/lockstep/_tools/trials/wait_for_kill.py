"""A run that waits to be killed: ``lockstep verify`` resumes it from a known step."""

from __future__ import annotations

import threading

from typing_extensions import override

from lockstep._joining.instrument import Run
from lockstep._listener import Listener, Stage


class WaitForKill(Listener):
    """A listener that waits once the first checkpoint of a run is on disk and one more step was
    taken, which is lost."""

    stage = Stage.LATE

    def __init__(self, run: Run) -> None:
        self._saver = run.saver

    @override
    def agreed(self, step: int) -> None:
        """Waits forever, unless the checkpoint could not be written: then the run continues. Called
        on every rank."""
        if self._saver.num_saved and self._saver.wait_until_written():
            threading.Event().wait()
