"""Waiting for other machines: said at once, and then every ten seconds, and with an end."""

from __future__ import annotations

import contextlib
import sys
import threading
import time

from lockstep.errors import LaunchError

_TELL_AFTER_S = 1.0
_TELL_EVERY_S = 10.0
_PAUSE_S = 0.1


def say(text: str) -> None:
    """A line of the launcher, on standard error."""
    with contextlib.suppress(OSError, ValueError):  # a reader that left early must not stop the run
        print(f"lockstep: {text}", file=sys.stderr, flush=True)


class StoppedError(Exception):
    """Somebody stopped this launcher."""


class Stop(threading.Event):
    """Whether somebody has stopped this launcher. It may be set from any thread."""

    def sleep(self, seconds: float) -> None:
        """Sleep, at most until the launcher is stopped.

        Raises:
            StoppedError: it was stopped.
        """
        if self.wait(seconds):
            raise StoppedError


class Waiter:
    """One wait, from now.

    Args:
        endpoint: of the rendezvous.
        timeout_s: how long to wait.
        stop: ends the wait as well.
        remedy: what to look at if the wait times out.
        hints: whether that is worth a look as soon as it takes a while.
    """

    def __init__(self, endpoint: str, timeout_s: float, stop: Stop, remedy: str, *, hints: bool = True) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._stop = stop
        self._remedy = remedy
        self._whom = "other nodes"
        self._began = time.monotonic()
        self._began_at = time.time()
        self._tell_at = self._began + _TELL_AFTER_S
        self._hint_at = 2 if hints else 0
        self._num_told = 0

    @property
    def waited_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def remaining_s(self) -> float:
        """Seconds that are left, 0 or more."""
        return max(0.0, self._timeout_s - self.waited_s)

    def tell(self, whom: str, *, ends: bool = True) -> None:
        """Say, if it is time to, that this node waits for ``whom``. ``ends``: not for longer than the timeout.

        Raises:
            StoppedError: somebody has stopped this launcher.
        """
        self._stop.sleep(0)
        self._whom = whom
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + _TELL_EVERY_S
            until = time.strftime("%H:%M:%S", time.localtime(self._began_at + self._timeout_s))
            limit = f", until {until} ({self._timeout_s:g} s in all)" if ends else ""
            self._num_told += 1
            hint = f". {self._remedy}" if self._num_told == self._hint_at else ""
            say(f"waits at {self._endpoint} for {whom}, for {self.waited_s:.0f} s now{limit}. Ctrl-C ends it{hint}")

    def timed_out(self) -> LaunchError:
        """What to raise when the time is over."""
        return LaunchError(f"timed out: waited {self._timeout_s:g} s at {self._endpoint} for {self._whom}. {self._remedy}")

    def pause(self, whom: str, *, ends: bool = True) -> None:
        """The same, and sleep for a moment.

        Raises:
            StoppedError: somebody has stopped this launcher.
            LaunchError: the time is over.
        """
        self.tell(whom, ends=ends)
        if self.remaining_s == 0:
            raise self.timed_out()
        self._stop.sleep(_PAUSE_S)
