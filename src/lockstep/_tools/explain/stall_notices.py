"""What the user is told while ranks wait: a warning if nothing gets done, and an all-clear after
one that turns out wrong."""

from __future__ import annotations

import time
from collections.abc import Callable

from lockstep._base.reports import Report


class StallNotices:
    """What one process has told.

    Args:
        publish: tells the user of a report.
        say: tells the user a line.
    """

    def __init__(self, publish: Callable[[Report], None], say: Callable[[str], None]) -> None:
        self._publish = publish
        self._say = say
        self._began_s: float | None = None
        """When the wait began of which the user was warned, in the time of ``time.monotonic``;
        None: of none, or it is over."""

    @property
    def has_warned(self) -> bool:
        """Whether there was a warning, and no all-clear since."""
        return self._began_s is not None

    def warn(self, report: Report, waited_s: float) -> None:
        """Say that ranks do not get on, which have waited for so many seconds."""
        self._began_s = time.monotonic() - waited_s
        self._publish(report)

    def all_clear(self) -> None:
        """Say that the ranks get on, after a warning that they do not."""
        if self._began_s is not None:
            waited_s, self._began_s = time.monotonic() - self._began_s, None
            self._say(f"all clear: the run is making progress again, after {waited_s:.0f} s.")
