"""Waiting for other machines, with messages every ten seconds and a timeout."""

from __future__ import annotations

import threading
import time

from lockstep._base.errors import LaunchError
from lockstep._base.stopping import say

_TELL_AFTER_S = 1.0
_TELL_EVERY_S = 10.0
PAUSE_S = 0.1


class StoppedError(Exception):
    """This launcher was stopped."""


class Stop(threading.Event):
    """An event that any thread sets when this launcher is stopped."""

    def sleep(self, seconds: float) -> None:
        """Sleeps until the launcher is stopped, or the time has passed.

        Raises:
            StoppedError: the launcher was stopped.
        """
        if self.wait(seconds):
            raise StoppedError


class Waiter:
    """A wait that begins now.

    Args:
        timeout_s: how long to wait.
        stop: ends the wait as well.
        remedy: advice for the user if the wait times out.
        pause_s: how long ``pause`` sleeps, in seconds.
    """

    def __init__(
        self,
        endpoint: str,
        timeout_s: float,
        stop: Stop,
        remedy: str,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._stop = stop
        self._remedy = remedy
        self._pause_s = pause_s
        self._whom = "other nodes"
        self._began = time.monotonic()
        self._began_at = time.time()
        self._tell_at = self._began + _TELL_AFTER_S

    @property
    def waited_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 or more."""
        return max(0.0, self._timeout_s - self.waited_s)

    def tell(self, whom: str, *, ends: bool = True) -> None:
        """Reports, if it is due, that this node waits for ``whom``. ``ends``: whether the timeout
        applies.

        Raises:
            StoppedError: this launcher was stopped.
        """
        self._stop.sleep(0)
        self._whom = whom
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + _TELL_EVERY_S
            until = time.strftime("%H:%M:%S", time.localtime(self._began_at + self._timeout_s))
            limit = f", until {until}, {self._timeout_s:g} s in all" if ends else ""
            say(f"waiting at {self._endpoint} for {whom} ({self.waited_s:.0f} s so far{limit}). Press Ctrl-C to exit")

    def timed_out(self) -> LaunchError:
        """The error for a wait that timed out."""
        return LaunchError(
            f"timed out: waited {self._timeout_s:g} s at {self._endpoint} for {self._whom}. {self._remedy}",
            code="rendezvous-timeout",
        )

    def pause(self, whom: str, *, ends: bool = True) -> None:
        """Reports, if it is due, that this node waits for ``whom``, then sleeps briefly.

        Raises:
            StoppedError: this launcher was stopped.
            LaunchError: the wait timed out.
        """
        self.tell(whom, ends=ends)
        if self.remaining_s == 0:
            raise self.timed_out()
        self._stop.sleep(min(self._pause_s, self.remaining_s))
