"""Looks twice a second at what the thread that trains does, and writes it into the black box of the process.

Nothing is asked of that thread, so a step pays nothing for it. One that holds Python's interpreter lock in C code, or
was stopped, cannot be looked at: then the newest record is what it did before that began (see ``asking``).
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep.explain.asking import Answering
from lockstep.explain.black_box import BlackBox
from lockstep.explain.flight import pending
from lockstep.stopping import say

EVERY_S = 0.5
_WAITS_AFTER_S = 1.0
"""A thread that has not moved for so long may be waiting in a collective."""
_SUSPENDED_S = 5.0
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_MOST_FRAMES = 40
_CLOSE_S = 2.0

_PACKAGE = Path(__file__).parents[1]
_MEETING = (*(f"{_PACKAGE}/{room}/" for room in ("comm", "sync", "loop")), "/torch/distributed/")
"""Where the innermost frame of a rank is that waits for others."""

Frame = tuple[str, int, str]
"""File, line, and function."""


def waits_at(stack: Sequence[Sequence[Any]], collective: object) -> bool:
    """Whether a thread with these frames, innermost first, waits for other ranks, with this collective begun or None."""
    if not stack:
        return False
    file = str(stack[0][0])
    return any(part in file for part in _MEETING) or (collective is not None and "/torch/" in file)


class Sampler:
    """Looks until it is closed.

    Args:
        path: of the black box.
        about: what does not change: ``rank``, ``world_size``, ``host``, ``pid``, ...
        doing: what the thread does, as far as it is known without its stack: called from another thread.
        limit_s: for how long the thread may wait for other ranks: the same.
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
        self._doing = doing
        self._box = BlackBox(path, is_shared=about["num_nodes"] > 1)
        self._answering = Answering(path.with_suffix(".stacks"))
        self._thread_id = threading.get_ident()
        self._about = {**about, "stack_file": str(self._answering.path.absolute()), "thread": self._thread_id}
        self._stack: list[Frame] = []
        self._at: Mapping[str, Any] = {}
        self._same_since_s = time.time()
        self._collective: dict[str, Any] | None = None
        self._asked_at_s = 0.0
        """When the recorder was last asked for the collective that is waited in."""
        self._pause_s, self._next_s = _LEAST_PAUSE_S, 0.0
        """Before ``stuck`` is called again, and when that is."""
        self._has_failed = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-black-box", daemon=True)
        self._thread.start()

    def close(self, how: str) -> None:
        """The run is over for this process: ``finished``, or ``failed``."""
        self._closed.set()
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._try(lambda: self._look(ended=how))
            self._answering.close()
            self._box.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            began_s = time.time()
            self._try(self._look)
            self._try(self._watch)
            self._closed.wait(EVERY_S)
            if time.time() - began_s > _SUSPENDED_S:  # the whole launch was stopped for a while, or the machine slept
                self._same_since_s = time.time()

    def _try(self, act: Callable[[], None]) -> None:
        """Nothing that goes wrong here may matter to the training."""
        try:
            act()
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                say(f"WARNING: what this rank does cannot be written for `lockstep stacks`: {error}")

    def _watch(self) -> None:
        """If this rank has waited for too long, see for whom: now, and then less and less often."""
        now = time.time()
        if now - self._same_since_s <= self._limit_s() or not self._is_waiting() or now < self._next_s:
            return
        self._pause_s = math.inf if self._stuck() else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._next_s = now + self._pause_s

    def _is_waiting(self) -> bool:
        return waits_at(self._stack, self._collective)

    def _look(self, ended: str | None = None) -> None:
        now = time.time()
        stack, at = _stack_of(sys._current_frames().get(self._thread_id)), self._doing()
        if stack != self._stack or at != self._at:
            self._stack, self._at, self._same_since_s, self._collective = stack, at, now, None
            self._pause_s, self._next_s = _LEAST_PAUSE_S, 0.0
        elif now - self._same_since_s >= _WAITS_AFTER_S and now - self._asked_at_s >= _WAITS_AFTER_S:
            found, self._asked_at_s = pending(), now
            self._collective = None if found is None else {**asdict(found), "text": str(found)}
        self._box.write(
            {
                **self._about,
                "time_s": now,
                "since_s": self._same_since_s,
                "doing": at,
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
