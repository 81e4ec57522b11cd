"""Rank 0's measurements: written to the journal of the run directory, and to the run's trackers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.journal.measure.trackers import Trackers
from lockstep.journal.writer import EventWriter


class Journal:
    """The journal of one process; ranks other than 0 write nothing.

    Args:
        run_dir: the run's directory; None: write nothing.
        trackers: for averages; None: there are none.
    """

    def __init__(self, run_dir: Path | None, trackers: Trackers | None = None) -> None:
        self._events = None if run_dir is None else EventWriter(run_dir)
        self._trackers = Trackers() if trackers is None else trackers

    def write(self, event: str, **fields: Any) -> None:
        """Write an event (see ``journal.events``)."""
        if self._events is not None:
            self._events.write(event, **fields)

    def scalars(self, kind: str, epoch: int, step: int, values: dict[str, float], *, waits: bool = False) -> None:
        """Write averages, as an event of this kind (``step`` or ``evaluate``) and to trackers, where those of an evaluation may
        have to wait for values of past steps."""
        if self._events is None or not values:
            return
        self._events.write(kind, epoch=epoch, step=step, values=values)
        if kind == "evaluate":
            self._trackers.write_evaluation(step, values, waits=waits)
        else:
            self._trackers.write_step(step, values)

    def close(self, *, failed: bool = False) -> None:
        """Close the files and the trackers. May be called again."""
        if self._events is not None:
            self._events.close()
        self._trackers.close(failed=failed)
