"""Looks twice a second at what the thread that trains does, and writes it into the black box of the process.

Nothing is asked of that thread, so a step pays nothing for it. One that holds Python's interpreter lock in C code, or
was stopped, cannot be looked at: then the newest record is what it did before that began (see ``asking``).

A process has one sampler at most: that of its run takes over from the one that its launcher has given it (``worker_box``). The
thread is none of ``threading``'s, so that a script sees no more threads than it has made, and it rests while the process forks:
Python warns of forking beside threads.
"""

from __future__ import annotations

import _thread
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.explain.asking import Answering
from lockstep.explain.black_box import BlackBox, fits
from lockstep.explain.flight import counts, recorded
from lockstep.explain.frames import Frame, stack_of
from lockstep.explain.process import io_bytes, own_memory
from lockstep.explain.script_clock import ScriptClock
from lockstep.stopping import say

EVERY_S = 0.5
_GLANCES = 5
"""So often in that time it is seen in what a script that knows no steps spends its time."""
_WAITS_AFTER_S = 1.0
"""A thread that has not moved for so long may be waiting in a collective."""
_SUSPENDED_S = 5.0
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_MOST_OF_ERROR = 6000  # characters of a traceback
_FEWEST_WINDOWS, _FEWEST_FRAMES = 16, 10
"""What stays of a record that is too long for its box."""
_CLOSE_S = 2.0
_FORK_S = 0.2
"""For how long a fork waits for the thread to rest."""
BUSY_BYTES = 1 << 18
"""Who reads or writes more than this between two looks is at work, at whatever line: it saves a checkpoint, say."""

_PACKAGE = Path(__file__).parents[1]
_COMMUNICATING = (*(f"{_PACKAGE}/{room}/" for room in ("comm", "sync", "loop")), "/torch/distributed/")
"""Where the innermost frame of a rank is that waits for others."""


def meets_at(stack: Sequence[Sequence[Any]]) -> bool:
    """Whether a thread with these frames, innermost first, is where ranks wait for each other."""
    return bool(stack) and any(part in str(stack[0][0]) for part in _COMMUNICATING)


def waits_at(stack: Sequence[Sequence[Any]], collective: object) -> bool:
    """Whether a thread with these frames, innermost first, waits for other ranks, with this collective begun or None.

    One that has begun a collective and does not move waits for it wherever it is: ``work.wait()`` and, on a GPU,
    ``loss.item()`` have no frame of their own.
    """
    return meets_at(stack) or (bool(stack) and collective is not None)


class Sampler:
    """Looks until it is closed.

    Args:
        path: of the black box.
        about: what does not change: ``rank``, ``world_size``, ``host``, ``pid``, ...
        doing: what the thread does, as far as it is known without its stack: called from another thread.
        limit_s: for how long the thread may wait for other ranks: the same.
        stuck: called when it has, again and again until it returns True: the same. None: that is somebody else's task, and
            nothing is ever said.
        clock: of a script that knows no steps.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        doing: Callable[[], Mapping[str, Any]],
        limit_s: Callable[[], float] = lambda: math.inf,
        stuck: Callable[[], bool] | None = None,
        clock: ScriptClock | None = None,
    ) -> None:
        global _current
        if _current is not None:
            _current.hand_over(path)
        self._limit_s = limit_s
        self._stuck = stuck
        self._clock = clock
        self._doing = doing
        self._box = BlackBox(path, is_shared=about.get("num_nodes", 1) > 1)
        self._answering = Answering(path.with_suffix(".stacks"))
        self._pid, self._thread_id = os.getpid(), threading.get_ident()
        self._about = {**about, "thread": self._thread_id}
        self._stack: list[Frame] = []
        self._at: Mapping[str, Any] = {}
        self._same_since_s = self._worked_s = time.time()
        self._io_bytes = 0
        self._clock_id = time.pthread_getcpuclockid(self._thread_id) if hasattr(time, "pthread_getcpuclockid") else None
        self._cpu_s, self._awake_s = 0.0, time.time()
        """The thread's processor time, and when that was last seen to grow."""
        self._collective: dict[str, Any] | None = None
        self._begun: Mapping[str, int] = {}
        self._recent: Sequence[tuple[int, str]] = ()
        self._asked_at_s = 0.0
        """When the recorder was last asked for the collective that is waited in."""
        self._pause_s, self._next_s = _LEAST_PAUSE_S, 0.0
        """Before ``stuck`` is called again, and when that is."""
        self._last: dict[str, Any] = {}
        self._error = ""
        self._has_failed = stuck is None
        self._halted = threading.Event()
        self._at_work = threading.Lock()
        """Held by the thread."""
        self.resume()
        _current = self

    def hand_over(self, path: Path) -> None:
        """Another box is this process's from now on."""
        self._about["joined"] = str(path.absolute())
        self.close("joined")
        if self._clock is not None:
            self._clock.close()

    def close(self, how: str) -> None:
        """The run is over for this process: ``finished``, or ``failed``: then what it did before that stays in the box."""
        global _current
        if os.getpid() == self._pid and self.halt(_CLOSE_S):  # what it has forked has no thread, and no say
            if how == "failed" and self._last:
                recent = recorded().recent or self._recent
                record = {**self._last, "begun": counts().begun or self._begun, "recent": recent, "ended": how}
                record.pop("steps", None)  # nobody judges them any more, and the traceback needs the room
                self._try(lambda: self._write({**record, "error": self._error}))
            else:
                self._try(lambda: self._look(ended=how))
            self._answering.close()
        if _current is self:
            _current = None

    def note_error(self, error: str) -> None:
        """The end of the traceback that this process fails with: it stays in the box when that is closed."""
        self._error = error[-_MOST_OF_ERROR:]

    def halt(self, most_s: float) -> bool:
        """Have the thread rest; whether it does so in time."""
        self._halted.set()
        if self._at_work.acquire(timeout=most_s):
            self._at_work.release()
            return True
        return False

    def resume(self) -> None:
        """Have it look again."""
        self._halted.clear()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        with self._at_work:
            self._halted.wait(self._last.get("time_s", 0.0) + EVERY_S - time.time())
            while not self._halted.is_set():
                began_s = time.time()
                self._try(self._look)
                self._try(self._watch)
                self._pause()
                if time.time() - began_s > _SUSPENDED_S:  # the whole launch was stopped for a while, or the machine slept
                    self._same_since_s = time.time()

    def _pause(self) -> None:
        """Until the next look."""
        if self._clock is None:
            self._halted.wait(EVERY_S)
            return
        for _ in range(_GLANCES):
            self._halted.wait(EVERY_S / _GLANCES)
            if self._halted.is_set():
                return
            self._try(self._glance)

    def _glance(self) -> None:
        if self._clock is not None:
            self._clock.glance(sys._current_frames().get(self._thread_id))

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
        if self._stuck is None or now < self._next_s or not waits_at(self._stack, self._collective):
            return
        if now - self._same_since_s > self._limit_s():
            self._pause_s = math.inf if self._stuck() else min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._next_s = now + self._pause_s

    def _look(self, ended: str | None = None) -> None:
        now, did_bytes = time.time(), io_bytes()
        stack, at = stack_of(sys._current_frames().get(self._thread_id)), self._doing()
        if stack != self._stack or at != self._at:
            self._stack, self._at, self._same_since_s, self._collective = stack, at, now, None
            self._pause_s, self._next_s = _LEAST_PAUSE_S, 0.0
        elif now - self._same_since_s >= _WAITS_AFTER_S and now - self._asked_at_s >= _WAITS_AFTER_S:
            record, self._asked_at_s = recorded(), now
            self._collective = None if record.pending is None else {**asdict(record.pending), "text": str(record.pending)}
            self._recent = record.recent
        self._begun = counts().begun
        if self._clock_id is not None and (cpu_s := time.clock_gettime(self._clock_id)) > self._cpu_s:
            self._cpu_s, self._awake_s = cpu_s, now
        if did_bytes - self._io_bytes > BUSY_BYTES:
            self._worked_s = now
        self._io_bytes = did_bytes
        self._last = {
            **self._about,
            **self._answering.where(),
            "time_s": now,
            "since_s": self._same_since_s,
            "worked_s": self._worked_s,
            "awake_s": self._awake_s,
            "io_bytes": did_bytes,
            "memory": own_memory(),
            "doing": at,
            "stack": stack,
            "collective": self._collective,
            "begun": self._begun,
            "recent": self._recent,
            **({} if self._clock is None else {"steps": self._clock.history()}),
            "ended": ended,
        }
        self._write(self._last)

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._box.write(record)
        except ValueError:  # it is too long
            self._box.write(shortened(record))


def shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record that was too long for its black box, cut down until it fits. Pure.

    What goes first is worth least: older windows of steps, then the outer frames, then all steps, and last the beginning of the
    traceback.
    """
    short = dict(record)
    if steps := short.get("steps"):
        short["steps"] = {**steps, "windows": steps["windows"][-_FEWEST_WINDOWS:]}
    while len(short["stack"]) > _FEWEST_FRAMES and not fits(short):
        short["stack"] = short["stack"][: max(_FEWEST_FRAMES, len(short["stack"]) - 5)]
    if not fits(short):
        short.pop("steps", None)
    while short.get("error") and not fits(short):
        short["error"] = short["error"][len(short["error"]) // 4 + 1 :]
    return short


_current: Sampler | None = None
"""Of this process."""


def fail_current(error: str) -> None:
    """The program of this process has failed, with this traceback: what it did before that is to stay in its box."""
    if _current is not None:
        _current.note_error(error)
        _current.close("failed")


def _before_fork() -> None:
    if _current is not None:
        _current.halt(_FORK_S)


def _in_parent() -> None:
    if _current is not None:
        _current.resume()


def _in_child() -> None:
    global _current
    _current = None


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
