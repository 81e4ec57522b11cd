"""Where rank 0 writes what was measured: the journal of the run directory, and the run's trackers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.measure.events import EventWriter
from lockstep.measure.tracking import Trackers


class Journal:
    """The outlets of one process; on ranks other than 0 there are none.

    Args:
        run_dir: the run's directory; None: write nothing (ranks other than 0).
        trackers: told of averages; None: none are.
    """

    def __init__(self, run_dir: Path | None, trackers: Trackers | None = None) -> None:
        self._events = None if run_dir is None else EventWriter(run_dir)
        self._trackers = Trackers() if trackers is None else trackers

    def write(self, event: str, **fields: Any) -> None:
        """Write an event (see ``measure.events``)."""
        if self._events is not None:
            self._events.write(event, **fields)

    def scalars(self, kind: str, epoch: int, step: int, values: dict[str, float]) -> None:
        """Write averages: as an event of that kind (``step`` or ``evaluate``), and for trackers."""
        if self._events is None or not values:
            return
        self._events.write(kind, epoch=epoch, step=step, values=values)
        if kind == "evaluate":
            self._trackers.tested(step, values)
        else:
            self._trackers.trained(step, values)

    def close(self, *, failed: bool = False) -> None:
        """Close the files, and leave the trackers. May be called again."""
        if self._events is not None:
            self._events.close()
        self._trackers.close(failed=failed)
