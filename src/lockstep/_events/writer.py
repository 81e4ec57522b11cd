"""Writes JSON lines to a file of a run directory.

What survives depends on how far a line has come::

    write_line --> memory (only while the disk is full) --> the kernel --> the disk
                     |                                        |              |
    a kill of        lost                                    kept           kept
    the process
    a power failure  lost                                    may be lost    kept

Each line is passed to the kernel immediately, so a killed run has at most one line that is cut off
in the middle. The next launch begins a new line, readers skip the broken one, and the events of
steps after the checkpoint are written again (``history``). Lines are not flushed to the disk one by
one: after a power failure the run resumes from a checkpoint, which is flushed, and writes the
events after it again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep._base.escape_control import escape_control
from lockstep._base.nofollow import open_to_write
from lockstep._events.format import FILE_NAME


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON cannot represent it, and most readers reject Python's extension
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class LineWriter:
    """A writer of JSON objects to a file of a run directory, one per line, without buffering.

    While the disk is full, lines are kept in memory, and training continues.

    Args:
        name: the name of the file.
        is_fresh: whether to delete the present content of the file.
    """

    def __init__(self, run_dir: Path, name: str, *, is_fresh: bool = False) -> None:
        self._path = run_dir / name
        more = os.O_TRUNC if is_fresh else 0
        # O_RDWR, since the last byte is read below.
        self._fd = open_to_write(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | more, 0o644, within=run_dir)
        self._waiting = b""
        self._has_warned = False
        size = os.fstat(self._fd).st_size
        # An earlier launch was killed in the middle of a line, which must not swallow the next one.
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._waiting = b"\n"

    def write_line(self, fields: Mapping[str, Any]) -> None:
        """Append one line."""
        self._waiting += json.dumps(_finite(fields)).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            # A write to a disk that becomes full may take only the beginning of a line.
            while self._waiting:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except OSError as error:
            if not self._has_warned:
                _warn(
                    f"cannot write {self._path}: {error}. Training continues; lines are kept in memory until the file can be "
                    "written"
                )
            self._has_warned = True
        else:
            self._has_warned = False

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._fd >= 0:
            self._flush()
            if self._waiting:
                _warn(f"{self._path}: the last {self._waiting.count(10)} lines could not be written and are missing")
            os.close(self._fd)
            self._fd = -1


class EventWriter:
    """A writer of events to the event log of a run (``_events/format.py`` has its format).

    Args:
        run_dir: the run's directory; None: write nothing, as on ranks other than 0.
    """

    def __init__(self, run_dir: Path | None) -> None:
        self._lines = None if run_dir is None else LineWriter(run_dir, FILE_NAME)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        if self._lines is not None:
            self._lines.write_line({"event": event, "time_s": time.time(), **fields})

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._lines is not None:
            self._lines.close()


def _warn(what: str) -> None:
    # Not a Python warning: it could be turned into an error, and a full disk must not end the
    # training.
    with contextlib.suppress(OSError):  # standard error may be a file on that disk
        print(escape_control(f"lockstep: WARNING: {what}."), file=sys.stderr, flush=True)
