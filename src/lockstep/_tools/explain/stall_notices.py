"""The notices that are printed while ranks wait: a warning if there is no progress, and an
all-clear after a warning that turns out wrong."""

from __future__ import annotations

import time
from collections.abc import Callable

from lockstep._base.reports import Report


class StallNotices:
    """The warnings and all-clears of one process.

    Args:
        publish: prints and notes a report.
        say: prints a line.
    """

    def __init__(self, publish: Callable[[Report], None], say: Callable[[str], None]) -> None:
        self._publish = publish
        self._say = say
        self._began_s: float | None = None
        """The beginning of the wait that was warned of, as ``time.monotonic`` counts; None: there
        is none, or the wait is finished."""

    @property
    def has_warned(self) -> bool:
        """Whether there was a warning, and no all-clear since."""
        return self._began_s is not None

    def warn(self, report: Report, waited_s: float) -> None:
        """Warn that ranks make no progress, after a wait of so many seconds."""
        self._began_s = time.monotonic() - waited_s
        self._publish(report)

    def all_clear(self) -> None:
        """Print that the ranks make progress again, after a warning."""
        if self._began_s is not None:
            waited_s, self._began_s = time.monotonic() - self._began_s, None
            self._say(f"all clear: the run is making progress again, after {waited_s:.0f} s.")
