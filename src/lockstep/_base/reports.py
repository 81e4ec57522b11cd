"""What diagnosis has to tell of a run: words for the user and, for programs that watch runs, the
same in fields.

Whoever finds something publishes it: a rank, of its own run, or the launcher. Each report becomes
one line of JSON in the file that ``lockstep run --reports FILE`` names, in one write, so that
processes may share the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from lockstep._base.errors import ConfigError
from lockstep._base.stopping import say

REPORTS = "LOCKSTEP_REPORTS"
"""The environment variable with the path of the file: ``lockstep run`` sets it for its workers; a
user may, under another launcher."""

WAITING = "waiting"
"""Some ranks wait for others: ``ranks`` are those that keep them waiting, ``cause`` says by
what."""
MISMATCH = "mismatch"
"""The ranks have called collectives that do not belong together: see ``calls`` and ``places``."""
PARTED = "parted"
"""``ranks`` have left a loop that others go on with (``cause``: ``break``, ``return``,
``sys.exit``, ``exception``, or ``continue`` past the loop over ``batch.shards``), or have come
alone to what all ranks do together."""
LOADER = "loader"
"""``ranks`` wait for batches of their own loaders."""
SLOW = "slow"
"""``ranks`` are slower than the others."""
LINGERING = "lingering"
"""The script of ``ranks`` is over, and something keeps their processes."""
FAILED = "failed"
"""A rank has failed; ``cause`` is the type of the exception, or the signal."""
ALONE = "alone"
"""``ranks`` train, and have never met: each trains a model of its own. ``cause`` is the library
that was to make them meet."""
SAME_FILE = "same_file"
"""``ranks`` have each saved one file, which may be damaged."""
REFUSED = "refused"
"""A command was refused with an error; ``cause`` is its type, ``code`` says what is wrong."""
NOTICE = "notice"
"""Something about a run that the user may want to change; ``code`` says what."""
KINDS = (WAITING, MISMATCH, PARTED, LOADER, SLOW, LINGERING, FAILED, ALONE, SAME_FILE, REFUSED, NOTICE)


@dataclass(frozen=True, kw_only=True)
class Report:
    """One finding."""

    kind: str
    """One of ``KINDS``."""
    text: str
    """For the user: lines of text."""
    ranks: tuple[int, ...] = ()
    """The ranks that it is about; empty: it is not known which."""
    cause: str = ""
    """What is wrong with them, in one stable word; empty: unknown."""
    code: str = ""
    """A stable name of this message, as ``LockstepError.code``; empty: it has none."""
    places: Mapping[int, str] = field(default_factory=dict)
    """Where each rank is in the user's code, as ``FILE:LINE in FUNCTION``, as far as known."""
    calls: Mapping[int, str] = field(default_factory=dict)
    """The collective in which each rank waits, as far as known."""
    is_warning: bool = True
    """False: it may be well as it is, as of a rank that polls for what may yet come."""
    seconds: float | None = None
    """For how long it has been so; None: unknown."""


class Notice(NamedTuple):
    """A line for the user about a run, with its stable name."""

    code: str
    """The stable name, as ``LockstepError.code``."""
    text: str
    """The line."""


def publish(report: Report) -> None:
    """Tell the user of it, and note it."""
    note(report)
    say(f"WARNING: {report.text}" if report.is_warning else report.text)


def warn(text: str, *, code: str) -> None:
    """Print a warning, and note it under its code."""
    publish(Report(kind=NOTICE, text=text, code=code))


def note(report: Report) -> None:
    """Append it to the file of this launch, if there is one. A file that cannot be written is no
    reason to stop a run."""
    if not (path := os.environ.get(REPORTS)):
        return
    line = {"time_s": time.time(), "host": socket.gethostname(), "pid": os.getpid(), **asdict(report)}
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"{json.dumps(line)}\n".encode())
        finally:
            os.close(fd)


def num_noted() -> int:
    """The size of the file of this launch, in bytes; 0: there is none, or it cannot be read
    again."""
    with contextlib.suppress(OSError, KeyError):
        found = Path(os.environ[REPORTS]).stat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def is_noted(report: Report, since: int) -> bool:
    """Whether the same was noted already, by any process, behind so many bytes of the file: of the
    same ranks, with the same cause. It may have lasted longer since."""
    if num_noted() <= since:
        return False
    with contextlib.suppress(OSError, KeyError, ValueError), Path(os.environ[REPORTS]).open("rb") as file:
        file.seek(since)
        noted = map(json.loads, file)
        mine = report.kind, sorted(report.ranks), report.cause
        return any((each["kind"], sorted(each["ranks"]), each["cause"]) == mine for each in noted)
    return False


@contextmanager
def recorded_in(path: Path | None) -> Iterator[None]:
    """A context in which this process, and those that it starts, record their reports in a file.

    Args:
        path: of the file, to which lines are added; None: where the environment says, if it does.

    Raises:
        ConfigError: it cannot be written.
    """
    if path is None:
        yield
        return
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(
            f"--reports {path}: cannot write this file ({error.strerror}), so no warning would be recorded. Use a file in an "
            "existing directory that you can write to.",
            code="reports-not-writable",
        ) from error
    before = os.environ.get(REPORTS)
    os.environ[REPORTS] = str(path.absolute())
    try:
        yield
    finally:
        if before is None:
            del os.environ[REPORTS]
        else:
            os.environ[REPORTS] = before
