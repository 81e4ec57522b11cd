"""What the user is told while ranks wait: a warning if nothing gets done, once for each place that ranks are at work there, and
an all-clear after a warning that turns out wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


class Remarks:
    """What one process has told. ``say``: tells the user a line or more."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: set[Hashable] = set()
        self._has_mentioned = False
        self._began_s: float | None = None
        """When the wait began of which the user was warned, in the time of ``time.monotonic``; None: of none, or it is over."""

    @property
    def has_warned(self) -> bool:
        """Whether there was a warning, and no all-clear since."""
        return self._began_s is not None

    def warn(self, text: str, waited_s: float) -> None:
        """Say that ranks do not get on, which have waited for so many seconds."""
        self._began_s = time.monotonic() - waited_s
        self._say(f"WARNING: {text}")

    def mention(self, text: str, where: Hashable) -> None:
        """Say that ranks work while others wait: once for each wait and each place."""
        if not self._has_mentioned and where not in self._known:
            self._known.add(where)
            self._say(text)
        self._has_mentioned = True

    def end_wait(self) -> None:
        """The ranks do not wait any more."""
        self._has_mentioned = False

    def all_clear(self) -> None:
        """Say that the ranks get on, after a warning that they do not."""
        if self._began_s is not None:
            waited_s, self._began_s = time.monotonic() - self._began_s, None
            self._say(f"all clear: the run is making progress again, after {waited_s:.0f} s.")
