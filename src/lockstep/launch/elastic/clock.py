"""Machines whose clocks differ. torchelastic writes into its state when each node was last alive, by that node's own clock, and
every node compares that with its own: one that is some seconds behind would be taken for lost, again and again.

Here all times in the state are by the clock of whoever keeps the store. Its launcher writes there what time it is; a node that
comes finds the difference, and takes it out of what it reads and writes (``state``).
"""

from __future__ import annotations

import time

from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.launch.elastic.repeating import Repeating

_TICK_S = 0.25
_KEY = "clock"


class Clock(Repeating):
    """Writes the time into the store until it is closed. ``store`` is for it alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tick()  # before anybody asks
        super().__init__("clock", self._tick, _TICK_S)

    def _tick(self) -> None:
        self._store.set(_KEY, repr(time.time()))


def seconds_ahead(store: Store) -> float:
    """How far this machine's clock is ahead of that of whoever keeps the store: to within some half a second."""
    return time.time() - float(store.get(_KEY))
