"""Looks twice a second at what the process's main thread does, and writes it into its black box.

Nothing is asked of the main thread, so a step pays nothing for it. One that holds Python's interpreter lock in C code, or
was stopped, cannot be looked at: then the newest record is what it did before that began (see ``asking``).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep.explain.asking import answer_into
from lockstep.explain.black_box import BlackBox
from lockstep.explain.flight import pending

EVERY_S = 0.5
_WAITS_AFTER_S = 1.0
"""A main thread that has not moved for so long may be waiting in a collective."""
_SUSPENDED_S = 5.0
_MOST_FRAMES = 40
_CLOSE_S = 2.0

_PACKAGE = Path(__file__).parents[1]
_MEETING = (*(f"{_PACKAGE}/{room}/" for room in ("comm", "sync", "loop")), "/torch/distributed/")
"""Where the innermost frame of a rank is that waits for others."""

Frame = tuple[str, int, str]
"""File, line, and function."""


def waits_at(stack: Sequence[Sequence[Any]]) -> bool:
    """Whether a main thread with these frames, innermost first, waits for other ranks."""
    return bool(stack and any(part in stack[0][0] for part in _MEETING))


class Sampler:
    """Looks until it is closed.

    Args:
        path: of the black box.
        about: what does not change: ``rank``, ``world_size``, ``host``, ``pid``, ...
        doing: what the main thread does, as far as it is known without its stack: called from another thread.
        limit_s: for how long the main thread may wait for other ranks: the same.
        stuck: called when it has, again and again until it returns True: the same.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        doing: Callable[[], Mapping[str, Any]],
        limit_s: Callable[[], float],
        stuck: Callable[[], bool],
    ) -> None:
        self._limit_s = limit_s
        self._stuck = stuck
        self._is_told = False
        self._doing = doing
        self._box = BlackBox(path)
        self._about = {**about, **answer_into(path.with_suffix(".stacks"))}
        self._main = threading.main_thread().ident
        self._stack: list[Frame] = []
        self._same_since_s = time.time()
        self._collective: dict[str, Any] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-black-box", daemon=True)
        self._thread.start()

    def close(self, how: str) -> None:
        """The run is over for this process: ``finished``, or ``failed``."""
        self._closed.set()
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._look(ended=how)
            self._box.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            began_s = time.time()
            self._look()
            if not self._is_told and time.time() - self._same_since_s > self._limit_s() and self._is_waiting():
                self._is_told = self._stuck()
            self._closed.wait(EVERY_S)
            if time.time() - began_s > _SUSPENDED_S:  # the whole launch was stopped for a while, or the machine slept
                self._same_since_s = time.time()

    def _is_waiting(self) -> bool:
        return self._collective is not None or waits_at(self._stack)

    def _look(self, ended: str | None = None) -> None:
        now = time.time()
        stack = _stack_of(sys._current_frames().get(self._main or 0))
        if stack != self._stack:
            self._stack, self._same_since_s, self._collective, self._is_told = stack, now, None, False
        elif self._collective is None and now - self._same_since_s >= _WAITS_AFTER_S:
            found = pending()
            self._collective = None if found is None else {**asdict(found), "text": str(found)}
        self._box.write(
            {
                **self._about,
                "time_s": now,
                "since_s": self._same_since_s,
                "doing": self._doing(),
                "stack": stack,
                "collective": self._collective,
                "ended": ended,
            }
        )


def _stack_of(frame: FrameType | None) -> list[Frame]:
    """Innermost first."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames
