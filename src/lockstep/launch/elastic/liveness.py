"""Whether the launchers' store still answers: asked in a thread of its own, for over a link that was cut one waits for ever."""

from __future__ import annotations

import time

from torch.distributed import Store  # type: ignore[attr-defined]

from lockstep.launch.elastic.repeating import Repeating

_EVERY_S = 1.0


class Liveness(Repeating):
    """Asks until it is closed. ``store`` is for it alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answered_at = time.monotonic()
        super().__init__("liveness", self._ask, _EVERY_S)

    def silence_s(self) -> float:
        """For how long it has not."""
        return time.monotonic() - self._answered_at

    def _ask(self) -> None:
        self._store.check(["liveness"])
        self._answered_at = time.monotonic()
