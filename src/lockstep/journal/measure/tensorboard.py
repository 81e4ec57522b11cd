"""Writes TensorBoard's files to the run directory."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.base.stopping import say

_RETRY_S = 30.0


class TensorBoard:
    """A tracker for TensorBoard, if that is installed.

    Args:
        resumed_from: the step at which an interrupted run resumes; None: it is new.
        must: whether to warn if it is not installed, since the user has asked for it.
    """

    def __init__(self, run_dir: Path, resumed_from: int | None, *, must: bool = False) -> None:
        self._run_dir = run_dir
        self._resumed_from = resumed_from
        self._must = must
        self._board: Any = None
        self._next_try_s = 0.0

    def open(self) -> None:
        """Nothing yet: opened with the first value, since importing TensorBoard takes about a second."""

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Write values, unless the disk is full: then it says so, and tries again later."""
        try:
            board = self._open()
            for name, value in values.items() if board is not None else ():
                board.add_scalar(f"{group}/{name}", value, step)
        except OSError as error:  # a full disk, say; errors of TensorBoard's own thread are raised here, too
            self.close(failed=False)
            self._next_try_s = time.monotonic() + _RETRY_S
            say(
                f"WARNING: TensorBoard's files in {self._run_dir} cannot be written: {error}. Training continues; "
                f"what is measured meanwhile goes to events.jsonl alone, and the next try is in {_RETRY_S:.0f} s."
            )

    def _open(self) -> Any:
        if self._board is None and time.monotonic() >= self._next_try_s:
            self._board = False
            if importlib.util.find_spec("tensorboard") is None:
                if self._must:
                    say("WARNING: --track tensorboard: it is not installed: pip install tensorboard")
            else:
                with contextlib.suppress(ImportError):  # too old, or broken; events.jsonl has all values
                    from torch.utils.tensorboard import SummaryWriter

                    # Later steps will be written again.
                    purge = None if self._resumed_from is None else self._resumed_from + 1
                    self._resumed_from = None
                    self._board = SummaryWriter(str(self._run_dir), purge_step=purge)
        return self._board or None

    def close(self, *, failed: bool) -> None:
        """Close the files."""
        board, self._board = self._board, None
        if board:
            with contextlib.suppress(OSError):
                board.close()
