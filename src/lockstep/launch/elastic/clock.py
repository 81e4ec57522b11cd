"""Machines whose clocks differ. torchelastic writes into its state when each node was last alive, by that node's own clock, and
every node compares that with its own: one that is some seconds behind would be taken for lost, again and again.

Here all times in the state are by the clock of whoever keeps the store. Its launcher writes there what time it is; a node that
comes finds the difference, and takes it out of what it reads and writes (``state``).
"""

from __future__ import annotations

import threading
import time

from torch.distributed import Store  # type: ignore[attr-defined]

_TICK_S = 0.25
_CLOSE_S = 0.5
"""A store that does not answer is not waited for."""
_KEY = "clock"


class Clock:
    """Writes the time into the store until it is closed. ``store`` is for it alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._store.set(_KEY, repr(time.time()))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-clock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write no more. (An interpreter that ends while a thread of it asks PyTorch's store aborts.)"""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._store.set(_KEY, repr(time.time()))
                self._closed.wait(_TICK_S)
        except Exception:  # the store is closed: so is this launcher
            return


def seconds_ahead(store: Store) -> float:
    """How far this machine's clock is ahead of that of whoever keeps the store: to within some half a second."""
    return time.time() - float(store.get(_KEY))
