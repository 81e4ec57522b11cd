"""Whether the launchers' store still answers: asked in a thread of its own, for over a link that was cut one waits for ever."""

from __future__ import annotations

import threading
import time

from torch.distributed import Store  # type: ignore[attr-defined]

_EVERY_S = 1.0
_CLOSE_S = 0.5
"""A store that does not answer is not waited for."""


class Liveness:
    """Asks until it is closed. ``store`` is for it alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answered_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-liveness", daemon=True)
        self._thread.start()

    def silence_s(self) -> float:
        """For how long it has not."""
        return time.monotonic() - self._answered_at

    def close(self) -> None:
        """Ask no more. (An interpreter that ends while a thread of it asks PyTorch's store aborts.)"""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._store.check(["liveness"])
                self._answered_at = time.monotonic()
                self._closed.wait(_EVERY_S)
        except Exception:  # it is closed, and will not answer again
            return
