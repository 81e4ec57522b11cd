"""Reads what is new in a journal that grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lockstep.base.regular import MOST_BYTES, MOST_LINE_BYTES, open_to_read
from lockstep.journal.events import read_event

_BLOCK_BYTES = 1 << 24


class Tail:
    """Reads new events from a journal, complete lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = 0
        self._at = 0
        self._rest = b""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The new events, and whether these are all, since the file was replaced or truncated."""
        try:
            with open_to_read(self._path, MOST_BYTES) as file:
                status = os.fstat(file.fileno())
                is_replaced = status.st_ino != self._file or status.st_size < self._at
                if is_replaced:
                    self._file, self._at, self._rest = status.st_ino, 0, b""
                file.seek(self._at)
                events = []
                while data := file.read(_BLOCK_BYTES):
                    self._at += len(data)
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    events += [event for line in lines if (event := read_event(line)) is not None]
                    self._rest = self._rest if len(self._rest) < MOST_LINE_BYTES else b""
                return events, is_replaced
        except OSError:  # it has not begun, or the file server does not answer
            return [], False
