"""Something that is done with the launchers' store again and again, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

_CLOSE_S = 0.5
"""A store that does not answer is not waited for."""


class Repeating:
    """Does it until it is closed, or it fails: then the store is closed, and will not answer again."""

    def __init__(self, name: str, act: Callable[[], None], every_s: float) -> None:
        self._act = act
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lockstep-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Do it no more. (An interpreter that ends while a thread of it asks PyTorch's store aborts.)"""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._act()
                self._closed.wait(self._every_s)
        except Exception:
            return
