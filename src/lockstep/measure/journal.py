"""Where rank 0 writes what was measured: the journal of the run directory, and TensorBoard if it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

from lockstep.measure.events import EventWriter

_BOARD_REST_S = 30.0


class Journal:
    """The outlets of one process; on ranks other than 0 there are none.

    Args:
        run_dir: the run's directory; None: write nothing (ranks other than 0).
        resumed_from: the step from which an interrupted run goes on; None: it is new.
    """

    def __init__(self, run_dir: Path | None, resumed_from: int | None = None) -> None:
        self._resumed_from = resumed_from
        self._run_dir = run_dir
        self._events = None if run_dir is None else EventWriter(run_dir)
        self._board: Any = None
        self._board_rests_until = 0.0

    def write(self, event: str, **fields: Any) -> None:
        """Write an event (see ``measure.events``)."""
        if self._events is not None:
            self._events.write(event, **fields)

    def scalars(self, kind: str, epoch: int, step: int, values: dict[str, float]) -> None:
        """Write averages: as an event of that kind (``step`` or ``evaluate``), and for TensorBoard."""
        if self._events is None or not values:
            return
        self._events.write(kind, epoch=epoch, step=step, values=values)
        self._to_board("evaluation" if kind == "evaluate" else "training", step, values)

    def _to_board(self, group: str, step: int, values: dict[str, float]) -> None:
        try:
            board = self._open_board()
            for name, value in values.items() if board is not None else ():
                board.add_scalar(f"{group}/{name}", value, step)
        except OSError as error:  # a full disk, say: what TensorBoard's own thread runs into comes out here
            self._close_board()
            self._board_rests_until = time.monotonic() + _BOARD_REST_S
            print(
                f"lockstep: WARNING: TensorBoard's files in {self._run_dir} cannot be written: {error}. Training continues; "
                f"what is measured meanwhile goes to events.jsonl alone, and the next try is in {_BOARD_REST_S:.0f} s.",
                file=sys.stderr,
                flush=True,
            )

    def _open_board(self) -> Any:
        if self._board is None and time.monotonic() >= self._board_rests_until:
            self._board = False
            if importlib.util.find_spec("tensorboard") is not None:
                # Imported at the first value, not with lockstep: it takes about a second.
                with contextlib.suppress(ImportError):  # too old, or broken: the events are written all the same
                    from torch.utils.tensorboard import SummaryWriter

                    # What was written of later steps will be written again.
                    purge = None if self._resumed_from is None else self._resumed_from + 1
                    self._resumed_from = None
                    self._board = SummaryWriter(str(self._run_dir), purge_step=purge)
        return self._board or None

    def _close_board(self) -> None:
        board, self._board = self._board, None
        if board:
            with contextlib.suppress(OSError):
                board.close()

    def close(self) -> None:
        """Close the files."""
        if self._events is not None:
            self._events.close()
        self._close_board()
