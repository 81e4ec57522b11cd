"""Periodic requests to the launchers' store, in a thread: over a link that was cut, a request
hangs.

There is one thread for all of them, since each would need a separate client, and an interpreter
that ends while a thread uses the store aborts. It detects a store that does not answer. A ``Round``
sends this node's heartbeats, and checks the others'. And the keeper of the store publishes its
time, since clocks differ: torchelastic's state contains when each node was last alive, by that
node's clock, and every node compares that with its own clock, by which a node that is some seconds
behind would seem lost. Here all times in the state are by the keeper's clock: a node determines the
difference when it joins, and corrects the times that it reads and writes (``state``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lockstep._launch.elastic.connection import ALL_RUNS, Connection
from lockstep._launch.elastic.signed import SignedStore

_CLOSE_S = 0.5
"""Seconds to wait for a store that does not answer."""
_UNNEEDED_S = 20.0
"""Seconds until numbered nodes that wait for others connect, to notice if the store is lost.
Sooner, a thousand nodes that start together would connect twice as often before they meet."""
_CLOCK = "clock"


class Heartbeat:
    """The thread of a launcher's periodic requests. It runs until it is closed, or the store fails,
    which is then unusable."""

    def __init__(self, connection: Connection) -> None:
        self.error: Exception | None = None
        """Why the store cannot be used or trusted any more."""
        self.answered_at = time.monotonic()
        """The moment at which the store last answered, in the time of ``time.monotonic``."""
        self.beat_s = connection.beat_s
        self._connection = connection
        self._act: Callable[[SignedStore], None] | None = None
        self._acting = threading.Lock()
        self._is_needed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-heartbeat", daemon=True)
        self._thread.start()

    def silence_s(self) -> float:
        """Seconds since the store last answered."""
        return time.monotonic() - self.answered_at

    def also(self, act: Callable[[SignedStore], None] | None) -> None:
        """Sets a function to call with the store at each heartbeat; None: none. Waits for the
        previous one to return, if the store answers.

        The function's first error becomes ``error``, and it is not called again. Errors of a
        previous function are ignored."""
        is_free = self._acting.acquire(timeout=_CLOSE_S)
        self._act = act
        if not self._is_needed.is_set():
            self.answered_at = time.monotonic()
            self._is_needed.set()
        if is_free:
            self._acting.release()

    def close(self) -> None:
        """Ends the requests. (An interpreter that ends while a thread uses PyTorch's store
        aborts.)"""
        self._closed.set()
        self._is_needed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            if self._connection.nodes.node_rank is not None:
                self._is_needed.wait(min(_UNNEEDED_S, self._connection.lost_s))
            if not self._closed.is_set():
                self._beat(self._connection.another_client())
        except Exception as error:
            self.error = self.error or error

    def _beat(self, store: SignedStore) -> None:
        # Not under the name of a run: other runs that share the store use the same clock.
        names, keeps_store = store.under(ALL_RUNS), self._connection.server is not None
        while not self._closed.is_set():
            if keeps_store:
                names.set(_CLOCK, repr(time.time()))
            else:
                names.check([_CLOCK])
            self._act_once(store)
            self.answered_at = time.monotonic()
            self._closed.wait(self.beat_s)

    def _act_once(self, store: SignedStore) -> None:
        with self._acting:
            act = self._act
            try:
                if act is not None:
                    act(store)
            except Exception as error:  # the clock is still published, for other runs and rounds
                if self._act is act:
                    self._act, self.error = None, error


def seconds_ahead(connection: Connection) -> float:
    """Seconds by which this machine's clock is ahead of the store keeper's, to within about half a
    second."""
    return 0.0 if connection.server is not None else time.time() - float(connection.store.under(ALL_RUNS).get(_CLOCK))
