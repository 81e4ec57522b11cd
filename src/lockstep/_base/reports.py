"""Reports on a run: text for the user and, for programs that watch runs, the same as fields.

The rank or launcher that finds something publishes it. Each report becomes one line of JSON in the
file of ``lockstep run --reports FILE``, in one ``write``, so that processes may share the file:
with O_APPEND, a local file system does not interleave such writes.

``code`` and ``kind`` are stable, and the text is not: programs and tests match the first two, so
that the text can be improved."""

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
"""The environment variable with the path of the file. ``lockstep run`` sets it for its workers;
under another launcher, a user may."""

WAITING = "waiting"
"""Some ranks wait for others: ``ranks`` keep them waiting, and ``cause`` is what these do."""
MISMATCH = "mismatch"
"""The ranks have called collectives that do not belong together: ``calls`` and ``places`` list
them."""
PARTED = "parted"
"""``ranks`` left a loop that the others continue (``cause``: ``break``, ``return``, ``sys.exit``,
``exception``, or ``continue`` past the loop over ``batch.shards``), or are alone in a call that all
ranks must make."""
LOADER = "loader"
"""``ranks`` wait for batches of their loaders."""
SLOW = "slow"
"""``ranks`` are slower than the others."""
LINGERING = "lingering"
"""The script of ``ranks`` has finished, and something keeps their processes alive."""
FAILED = "failed"
"""A rank has failed; ``cause`` is the type of the exception, or the signal."""
ALONE = "alone"
"""``ranks`` train separate models, because they never connected. ``cause`` is the library that
should have connected them."""
SAME_FILE = "same_file"
"""``ranks`` have each saved one file, which may be damaged."""
REFUSED = "refused"
"""A command was refused with an error: ``cause`` is its type, and ``code`` identifies the
problem."""
NOTICE = "notice"
"""A notice about a run that the user may want to change: ``code`` identifies it."""
KINDS = (WAITING, MISMATCH, PARTED, LOADER, SLOW, LINGERING, FAILED, ALONE, SAME_FILE, REFUSED, NOTICE)
"""All kinds of reports."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finding about a run."""

    kind: str
    """The kind of report, one of ``KINDS``."""
    text: str
    """The text for the user, in lines."""
    ranks: tuple[int, ...] = ()
    """The ranks that the report is about; empty: unknown."""
    cause: str = ""
    """The problem of these ranks, as one stable word; empty: unknown."""
    code: str = ""
    """The stable name of this message, like ``LockstepError.code``; empty: none."""
    places: Mapping[int, str] = field(default_factory=dict)
    """The place of each rank in the user's code, as ``FILE:LINE in FUNCTION``, where known."""
    calls: Mapping[int, str] = field(default_factory=dict)
    """The collective in which each rank waits, where known."""
    is_warning: bool = True
    """Whether it is a warning. False: the run may be healthy, for example if a rank polls for an
    event."""
    seconds: float | None = None
    """The duration of the condition so far; None: unknown."""


class Notice(NamedTuple):
    """A line for the user about a run, with its stable name."""

    code: str
    """The stable name, as ``LockstepError.code``."""
    text: str
    """The line for the user, without the prefix ``lockstep:``."""


def publish(report: Report) -> None:
    """Prints a report for the user, and notes it."""
    note(report)
    say(f"WARNING: {report.text}" if report.is_warning else report.text)


def warn(text: str, *, code: str) -> None:
    """Prints a warning, and notes it under its code."""
    publish(Report(kind=NOTICE, text=text, code=code))


def note(report: Report) -> None:
    """Appends a report to the file of this launch, if there is one. A file that cannot be written
    does not stop a run."""
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
    """Returns the size of this launch's file in bytes; 0: there is none, or it cannot be read."""
    with contextlib.suppress(OSError, KeyError):
        found = Path(os.environ[REPORTS]).stat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def is_noted(report: Report, since: int) -> bool:
    """Returns whether any process has noted the same report after this position of the file: of the
    same ranks, with the same cause. The duration may differ."""
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
    """A context in which this process, and the processes that it starts, record their reports in a
    file.

    Args:
        path: the file, to which lines are appended; None: the one in the environment, if any.

    Raises:
        ConfigError: it cannot be written.
    """
    if path is None:
        yield
        return
    try:
        # Opened once before the run: later, a file that cannot be written is ignored, and the user
        # would wait for reports in vain.
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
