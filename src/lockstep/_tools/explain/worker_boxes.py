"""What each loader worker of this process does, for the process's black box while it waits for one.

A worker is a fork of its rank. It samples itself twice a second into memory that both share, so
that its last line is known even if it is stopped, and nothing has to be asked by a signal, which
would interrupt its system calls. Of workers that are started otherwise (``spawn``, ``forkserver``)
only the kernel's facts are known.
"""

from __future__ import annotations

import _thread
import contextlib
import mmap
import multiprocessing.queues
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep._base import worker_note
from lockstep._base.shapes import fits
from lockstep._tools.explain.black_box import in_slot, newest_in
from lockstep._tools.explain.frames import stack_of
from lockstep._tools.explain.interpreter import SIGNAL, fields_of_fork
from lockstep._tools.explain.loader_workers import (
    WorkerRecord,
    in_task,
    is_starting_worker,
    reader_of,
    sample_at,
    workers_of,
)
from lockstep._tools.explain.process import facts_of, waits_in

EVERY_S = 0.5
_FIRST_S = 0.02
"""The delay of the first look; that of each further one is twice as long."""
_FIRST_WRITE_S = 0.2
"""The seconds for which a worker waits, once, for its sampling thread to begin."""
_SLOT_BYTES = 1 << 12
_MOST_FRAMES, _FEWEST_FRAMES = 12, 3
_MOST_OF_ERROR = 400
"""The most characters of a message."""
_MOST_WORKERS = 4
"""The most workers in a record."""
_LATE_S = 3.0
"""The age in seconds from which a record shows that its worker runs no Python code."""
_BEGINS_S = 60.0
"""The seconds after which a worker that has written nothing does not exist."""


class _Box:
    """Memory that a worker shares with its rank. The worker writes: two slots of a record, and one
    byte."""

    def __init__(self) -> None:
        self._made_s = time.time()
        self._memory = mmap.mmap(-1, 2 * _SLOT_BYTES + 1)
        self._number = 0

    @property
    def cell(self) -> memoryview:
        """The byte that ``worker_note`` sets while samples are read."""
        return memoryview(self._memory)[2 * _SLOT_BYTES :]

    def write(self, record: Mapping[str, Any]) -> None:
        self._number += 1
        data, begin = in_slot(record, self._number, _SLOT_BYTES), self._number % 2 * _SLOT_BYTES
        self._memory[begin : begin + len(data)] = data

    def read(self) -> dict[str, Any]:
        """The newest record; empty: there is none yet."""
        record = newest_in(self._memory[:], _SLOT_BYTES) or {}
        return {**record, "in_samples": self._memory[-1] == 1} if fits(record, WorkerRecord) else {}

    def is_used(self) -> bool:
        """Whether there is a worker that writes into it."""
        record = self.read()
        return Path(f"/proc/{record['pid']}").exists() if record else time.time() - self._made_s < _BEGINS_S


class _WorkerSampler:
    """Samples the main thread of a worker, which creates it, until the worker ends."""

    def __init__(self, box: _Box) -> None:
        self._box = box
        self._thread_id, self._pid = threading.get_ident(), os.getpid()
        self._stack: Any = []
        self._sample: object = None
        self._since_s = time.time()
        self._error = ""
        self._has_begun = threading.Event()
        self._write(time.time(), is_idle=False)
        _when_feeding_fails(self._note)
        # Signals are the main thread's: in another one they would find other handlers, and no mask
        # of the script's. But the one that asks for a stack is sent to this thread, and nothing
        # else uses it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {SIGNAL})
        try:
            _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # What the worker does first may hold the interpreter's lock: nothing could be asked of a
        # thread that has not begun.
        self._has_begun.wait(_FIRST_WRITE_S)

    def _note(self, error: BaseException) -> None:
        if not self._error:  # others follow from the first
            self._error = f"{type(error).__name__}: {error}"[:_MOST_OF_ERROR]

    def _run(self) -> None:
        pause_s = _FIRST_S
        with contextlib.suppress(Exception):
            self._write(time.time(), is_idle=False)
        self._has_begun.set()
        while True:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, EVERY_S)
            with contextlib.suppress(Exception):  # no error here may affect the worker
                self._look()

    def _look(self) -> None:
        now = time.time()
        frame = sys._current_frames().get(self._thread_id)
        (stack, is_idle), sample = in_task(stack_of(frame)), sample_at(frame)
        del frame  # and what it holds
        # else it keeps where it was last at work
        if not is_idle and (stack, sample) != (self._stack, self._sample):
            self._stack, self._sample, self._since_s = stack, sample, now
        self._write(now, is_idle=is_idle)

    def _write(self, now: float, *, is_idle: bool) -> None:
        record = {
            "pid": self._pid,
            "time_s": now,
            "since_s": self._since_s,
            "is_idle": is_idle,
            "stack": self._stack[:_MOST_FRAMES],
            "error": self._error,
            **(fields_of_fork(self._thread_id) if threading.get_ident() != self._thread_id else {}),
        }
        try:
            self._box.write(record)
        except ValueError:  # it is too long
            self._box.write({**record, "stack": self._stack[:_FEWEST_FRAMES]})


def _when_feeding_fails(note: Callable[[BaseException], None]) -> None:
    """Have ``note`` called, in this process, with each error of a queue's feeder thread: the item
    is lost, and the process that waits for it waits for ever.

    The method is private, though meant to be overridden. There is no public way to see the error,
    which is only printed."""
    queue: Any = multiprocessing.queues.Queue
    before = getattr(queue, "_on_queue_feeder_error", None)
    if before is None:
        return

    def tell(error: BaseException, item: object) -> None:
        note(error)
        before(error, item)

    queue._on_queue_feeder_error = staticmethod(tell)


_boxes: list[_Box] = []
"""The boxes of this process's workers."""
_next: _Box | None = None
"""The box of the worker that is being forked; None: none is."""


def before_fork() -> None:
    """Prepares a box if this thread is about to fork a loader worker."""
    global _next
    frame: FrameType | None = sys._getframe(1)
    if is_starting_worker(frame):
        _boxes[:] = [box for box in _boxes if box.is_used()]
        with contextlib.suppress(OSError):  # there is no memory: the worker does without
            _next = _Box()
            _boxes.append(_next)


def in_parent() -> None:
    """Forgets the prepared box, in the process that has forked."""
    global _next
    _next = None


def in_child() -> None:
    """Starts to write into the prepared box, in the fork."""
    global _next
    box, _next = _next, None
    _boxes.clear()
    if box is not None:
        worker_note.cell = box.cell
        _WorkerSampler(box)


def look_at_workers(loader: Any) -> list[dict[str, Any]]:
    """What the workers do that a loader's iterator may be waiting for, as JSON values
    (``WorkerRecord``): workers that make a batch, do not run or answer, or have lost a batch."""
    known = {record["pid"]: record for box in _boxes if (record := box.read())}
    found = []
    for pid in workers_of(loader):
        facts = facts_of(pid)
        state = "gone" if facts is None else facts.state
        record = known.get(pid, {"pid": pid, "time_s": 0.0, "since_s": 0.0, "is_idle": False, "stack": [], "error": ""})
        is_silent = bool(record["time_s"]) and time.time() - record["time_s"] > _LATE_S
        if not record["is_idle"] or is_silent or record["error"] or state in ("gone", "zombie", "stopped"):
            found.append({**record, "state": state, "waits_in": waits_in(pid), "reader": reader_of(loader)})
    return sorted(found, key=lambda record: (not record["error"], record["state"] == "sleeping"))[:_MOST_WORKERS]
