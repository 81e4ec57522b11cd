"""Records why a program failed, in a file for the process that started it; other output is for
people.

The process that starts a program passes the file in its environment (LOCKSTEP_FAILURE), because the
program may fail before it has a run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from lockstep._base.regular_files import read_bytes
from lockstep._base.shapes import check, parse

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """A failure as it was reported."""

    summary: str
    """The error, in one line."""
    report: str
    """The whole report."""

    def write(self, path: str | None) -> None:
        """Writes the record, unless this program has no file, or the file exists: the first process
        to fail is most likely the cause. Never fails."""
        # JSON writes a character in up to 6 bytes, so two fields of an eighth each could be longer
        # than what is read.
        text = json.dumps({name: value[: _MOST_BYTES // 16] for name, value in dataclasses.asdict(self).items()})
        with contextlib.suppress(OSError):
            if path is not None:
                # O_EXCL decides between processes that fail at the same time: one of them creates
                # the file.
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    file.write(text)


def read_failure(path: Path) -> FailureRecord | None:
    """Returns the failure in a file; None: none was recorded, or it cannot be read."""
    try:
        return check(FailureRecord(**parse(read_bytes(path, _MOST_BYTES))))
    except (OSError, TypeError, ValueError):
        return None
