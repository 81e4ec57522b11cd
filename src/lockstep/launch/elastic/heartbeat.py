"""What a launcher does with the launchers' store again and again, in a thread: over a link that was cut, one waits for ever.

All of it in one thread: each would need a client of its own, and an interpreter that ends while a thread of it asks the store
aborts. It sees whether the store still answers. A ``Round`` says there that this node is alive, and looks whether the others
are. And whoever keeps the store writes what time it is, for the machines' clocks differ: torchelastic's state has when each
node was last alive, by that node's own clock, and every node compares that with its own; one that is some seconds behind would
be taken for lost, again and again. All times in the state are by the keeper's clock: a node that comes finds the difference,
and takes it out of what it reads and writes (``state``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lockstep.launch.elastic.connection import ALL_RUNS, Connection

BEAT_S = 0.25
_CLOSE_S = 0.5
"""A store that does not answer is not waited for."""
_CLOCK = "clock"


class Heartbeat:
    """Beats until it is closed, or the store fails: then that is closed, and will not answer again."""

    def __init__(self, connection: Connection) -> None:
        self.store = connection.another_client()
        """For what ``also`` is given, alone."""
        self.error: Exception | None = None
        """Why the store cannot be asked any more, or what it says not be trusted."""
        self.answered_at = time.monotonic()
        """When the store has answered last, in the time of ``time.monotonic``."""
        # Under no run's own name: another run may meet at the same store, and finds its clock here, too.
        self._names = self.store.under(ALL_RUNS)
        self._keeps_store = connection.server is not None
        self._act: Callable[[], None] | None = None
        self._acting = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-heartbeat", daemon=True)
        self._thread.start()

    def silence_s(self) -> float:
        """For how long the store has not answered."""
        return time.monotonic() - self.answered_at

    def also(self, act: Callable[[], None] | None) -> None:
        """What else is done at each beat from now on. What was done before is at its end then, if the store answers.

        Its first error becomes ``error``, and ends it; not so one that comes when it is done no more.
        """
        is_free = self._acting.acquire(timeout=_CLOSE_S)
        self._act = act
        if is_free:
            self._acting.release()

    def close(self) -> None:
        """Ask nothing more. (An interpreter that ends while a thread of it asks PyTorch's store aborts.)"""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                if self._keeps_store:
                    self._names.set(_CLOCK, repr(time.time()))
                else:
                    self._names.check([_CLOCK])
            except Exception as error:
                self.error = self.error or error
                return
            self._do_else()
            self.answered_at = time.monotonic()
            self._closed.wait(BEAT_S)

    def _do_else(self) -> None:
        with self._acting:
            act = self._act
            try:
                if act is not None:
                    act()
            except Exception as error:  # the clock keeps running: other runs and rounds read it
                if self._act is act:
                    self._act, self.error = None, error


def seconds_ahead(connection: Connection) -> float:
    """How far this machine's clock is ahead of that of whoever keeps the store: to within some half a second."""
    return 0.0 if connection.server is not None else time.time() - float(connection.store.under(ALL_RUNS).get(_CLOCK))
