"""Where rank 0 writes what was measured: the journal of the run directory, and TensorBoard if it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import Any

from lockstep.measure.events import EventWriter


class Journal:
    """The outlets of one process; on ranks other than 0 there are none.

    Args:
        run_dir: the run's directory; None: write nothing (ranks other than 0).
    """

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._events = None if run_dir is None else EventWriter(run_dir)
        self._board: Any = None

    def write(self, event: str, **fields: Any) -> None:
        """Write an event (see ``measure.events``)."""
        if self._events is not None:
            self._events.write(event, **fields)

    def scalars(self, kind: str, epoch: int, step: int, values: dict[str, float]) -> None:
        """Write averages: as an event of that kind (``step`` or ``evaluate``), and for TensorBoard."""
        if self._events is None or not values:
            return
        self._events.write(kind, epoch=epoch, step=step, values=values)
        board = self._open_board()
        if board is not None:
            for name, value in values.items():
                board.add_scalar(f"{'evaluation' if kind == 'evaluate' else 'training'}/{name}", value, step)

    def _open_board(self) -> Any:
        if self._board is None:
            self._board = False
            if importlib.util.find_spec("tensorboard") is not None:
                # Imported at the first value, not with lockstep: it takes about a second.
                with contextlib.suppress(ImportError):  # too old, or broken: the events are written all the same
                    from torch.utils.tensorboard import SummaryWriter

                    self._board = SummaryWriter(str(self._run_dir))
        return self._board or None

    def close(self) -> None:
        """Close the files."""
        if self._events is not None:
            self._events.close()
        if self._board:
            self._board.close()
