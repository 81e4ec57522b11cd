"""Samples what the training thread is doing, twice a second, and writes it to the process's black
box.

The training thread itself does nothing for it, so sampling costs a step no time. A thread that
holds the interpreter lock in C code, or is stopped, cannot be sampled: the newest record is then an
earlier one.

::

    0 s        0.12      0.25      0.38      0.5 s
    |  look     | glance  | glance  | glance  |  look   ...
       |          +--> where time goes (time_samples): the stack only, at random moments
       +--> a whole record (black_box): stack, collective, memory, what the thread waits for

What is slow to find out (PyTorch's recorder takes milliseconds, locks need the script's syntax
tree) is read only once the thread has not moved for a second.

A process has at most one sampler at work: that of its run replaces the one that the launcher has
given it (``worker_box``), which continues when the run is closed. The sampler's thread is started
by ``_thread``, not by ``threading``: a script that counts or joins its threads must not see it, and
neither must what looks for threads that block the exit. It pauses while the process forks, because
Python warns of forks in processes with threads.
"""

from __future__ import annotations

import _thread
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._base.reports import warn
from lockstep._base.tracebacks.frames import OURS, Frame
from lockstep._tools.explain import worker_boxes
from lockstep._tools.explain.black_box import BlackBox
from lockstep._tools.explain.exit_blockers import exit_blockers
from lockstep._tools.explain.flight_recorder import counts, read_recording
from lockstep._tools.explain.frames import stack_of
from lockstep._tools.explain.interpreter import stack_file, switches
from lockstep._tools.explain.latest_calls import LatestCall, last_message, latest_calls, pending_call
from lockstep._tools.explain.loader_workers import batches_of, is_loading, loader_at, waits_for_loader
from lockstep._tools.explain.locks import awaited_by
from lockstep._tools.explain.process import io_bytes, own_memory
from lockstep._tools.explain.recorded_calls import record_calls
from lockstep._tools.explain.threads import dead_threads, handled_by, see_threads_die
from lockstep._tools.explain.time_samples import TimeSamples
from lockstep._tools.explain.work import WorkMeter
from lockstep._world.machine.identity import shared_by

EVERY_S = 0.5
_GLANCES = 3
"""The number of glances between two looks. They are at random times, since regular ones would fall
on the same part of every step."""
_WAITS_AFTER_S = 1.0
"""The seconds without movement after which a thread may be waiting in a collective."""
_MOST_OF_ERROR = 6000
"""The most characters of a traceback that are recorded."""
_FEWEST_FRAMES, _LEAST_OF_ERROR = 10, 1500
"""The frames, and the characters of a traceback, that are kept of a record that is too long."""
_CLOSE_S = 2.0
_FORK_S = 0.2
"""The seconds for which a fork waits for the sampler's thread to pause."""
_COMMUNICATING = (*(f"{OURS}{room}/" for room in ("_world/comm", "_sync", "_loop")), "/torch/distributed/")
"""The parts of paths of code in which ranks wait for each other."""
TRANSFERS = ("recv", "send")


def is_communicating(stack: Sequence[Sequence[Any]]) -> bool:
    """Whether a thread with this stack, innermost frame first, runs code in which ranks wait for
    each other."""
    return bool(stack) and any(part in str(stack[0][0]) for part in _COMMUNICATING)


def transfer_in(stack: Sequence[Sequence[Any]]) -> str:
    """The point-to-point call in which a thread with this stack waits; empty: none. PyTorch's
    recorders have these calls only on NCCL."""
    file, _, name = stack[0] if stack else ("", 0, "")
    return str(name) if name in TRANSFERS and "/torch/distributed/" in str(file) else ""


def call_in(stack: Sequence[Sequence[Any]]) -> str:
    """The function of ``torch.distributed`` in which a thread with this stack waits, as the script
    has called it; empty: none. Recorders know nothing of some: ``new_group``,
    ``monitored_barrier``."""
    name = ""
    for file, _, function in stack:
        if "/torch/nn/parallel/distributed.py" in str(file):
            return "DistributedDataParallel" if function == "__init__" else name
        if "/torch/distributed/" not in str(file):
            break
        if not str(file).endswith("c10d_logger.py"):
            name = str(function)
    return name


def waits_at(stack: Sequence[Sequence[Any]], collective: object) -> bool:
    """Whether a thread that does not move waits for other ranks.

    A thread with a pending collective does, wherever it is: ``work.wait()`` and, on a GPU,
    ``loss.item()`` have no frame.

    Args:
        stack: innermost frame first.
        collective: the pending one; None: there is none.
    """
    return is_communicating(stack) or (bool(stack) and collective is not None)


def about_process(rank: int, world_size: int, host: str, launch: str, **more: Any) -> dict[str, Any]:
    """The fields of every record of this process that do not change. ``more``: fields."""
    own = {"machine": shared_by("pid"), "pid": os.getpid(), "began_s": time.time()}
    return {"rank": rank, "world_size": world_size, "host": host, "launch": launch, **own, **more}


class Sampler:
    """Samples the thread that creates it, until it is closed.

    Args:
        path: of the black box.
        about: see ``about_process``.
        doing: what the thread is doing, as far as that is known without its stack. Called from the
            sampler's thread, as are the next three.
        step: returns the number of the step that the thread is in.
        waits: called twice a second with the seconds for which the thread has waited for other
            ranks or loader workers, 0 if it does not; None: that is not watched here, and nothing
            is ever printed.
        replaced: called when another black box takes over.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        doing: Callable[[], Mapping[str, Any]],
        step: Callable[[], int],
        waits: Callable[[float], None] | None = None,
        replaced: Callable[[], None] | None = None,
    ) -> None:
        global _current
        self._before = _current
        """The sampler that this one replaces."""
        if _current is not None:
            _current.hand_over(path)
        self._waits = waits
        self._replaced = replaced
        self._doing, self._step = doing, step
        self._box = BlackBox(path, is_shared=about.get("num_nodes", 1) > 1)
        self._pid, self._thread_id = os.getpid(), threading.get_ident()
        self._about = dict(about)
        self._stack: list[Frame] = []
        self._at: Mapping[str, Any] = {}
        self._batches = 0
        """The number of batches that the thread has got from the loader in which it is."""
        self._num_done = 0
        """The number of collectives that this process has finished: in steps that are one
        collective at one line, nothing else shows that the thread moves."""
        self._workers: Sequence[Mapping[str, Any]] = ()
        """The loader workers that the thread waits for, once it has not moved for a while."""
        self._same_since_s = time.time()
        self._work = WorkMeter()
        self._spent = TimeSamples()
        self._stack_file = stack_file(path.with_suffix(".stack"))
        self._draw = random.Random()
        """The generator of the glances' times, so that the script's is not used."""
        self._collective: dict[str, Any] | None = None
        self._message = ""
        """The message to or from a single rank in which the thread waits, for the user."""
        self._handled = ""
        """The exception that the thread is handling, once it has not moved for a while."""
        self._awaits: Mapping[str, str] = {}
        self._native_id = threading.get_native_id()
        self._switched: int | None = None
        """The number of the thread's voluntary context switches when it was first seen not to
        move; None: it moves."""
        self._begun: Mapping[str, int] = {}
        self._recent: Sequence[LatestCall] = ()
        self._recording_s = 0.0
        """The time at which the flight recorder was last read, in seconds since 1970."""
        self._last: dict[str, Any] = {}
        self._error = ""
        self._has_failed = waits is None
        self._sampling = 0
        """The identity of the sampler's thread."""
        self._halted = threading.Event()
        self._running = threading.Lock()
        """The lock that the sampler's thread keeps while it runs: who acquires it knows that the
        thread pauses."""
        see_threads_die()
        self.resume()
        _current = self

    def hand_over(self, path: Path) -> None:
        """Stop, since the process has another black box from now on."""
        self._about["joined"] = str(path.absolute())
        self.close("joined")
        if self._replaced is not None:
            self._replaced()

    def take_back(self) -> None:
        """Continue, since the process has no other black box any more."""
        global _current
        if os.getpid() == self._pid:
            self._about.pop("joined", None)
            self.resume()
            _current = self

    def close(self, how: str) -> None:
        """Stop, and record how the run ended for this process: ``finished`` or ``failed``. The box
        of a process that has failed keeps what it did before."""
        global _current
        self._has_failed = self._has_failed or how == "failed"  # the script's own error comes first
        # a forked process has no sampler thread
        if os.getpid() == self._pid and self.halt(_CLOSE_S):
            if how == "failed" and self._last:
                recent = latest_calls(read_recording().recent) or self._recent
                record = {**self._last, "begun": counts().begun or self._begun, "recent": recent, "ended": how}
                self._try(lambda: self._write({**record, "error": self._error}))
            else:
                if self._waits is not None:
                    # it waits no more, and the next look might have been too late to say so
                    self._waits(0.0)
                self._try(lambda: self._look(ended=how))
        if _current is self:
            _current = None
            if how == "finished" and self._before is not None:
                self._before.take_back()

    def look_now(self) -> None:
        """Record immediately what the process does, since it may exit before the next look. Called
        by the main thread."""
        if self.halt(_FORK_S):
            self._try(self._look)
            self.resume()

    def note_error(self, error: str) -> None:
        """Keep the end of the traceback with which this process fails for the last record."""
        self._error = error[-_MOST_OF_ERROR:]

    def halt(self, most_s: float) -> bool:
        """Pause the sampler's thread; returns whether it did so in time."""
        self._halted.set()
        if self._running.acquire(timeout=most_s):
            self._running.release()
            return True
        return False

    def resume(self) -> None:
        """Start or continue sampling."""
        self._halted.clear()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        with self._running:
            self._sampling = threading.get_ident()
            self._halted.wait(self._last.get("time_s", 0.0) + EVERY_S - time.time())
            while not self._halted.is_set():
                self._try(self._look)
                self._try(self._watch)
                for _ in range(_GLANCES):
                    if not self._halted.wait(EVERY_S / (_GLANCES + 1) * self._draw.uniform(0.5, 1.5)):
                        self._try(self._glance)
                self._halted.wait(EVERY_S / (_GLANCES + 1))

    def _glance(self) -> None:
        """Note where the thread is, for the shares of its time."""
        frame = self._frame()
        self._spent.note(frame, self._step(), self._at.get("num_done", 0), time.time())

    def _is_sampling(self) -> bool:
        """Whether the sampler's thread calls this: before it ends, the main thread looks."""
        return threading.get_ident() == self._sampling

    def _frame(self) -> Any:
        return sys._current_frames().get(self._thread_id)

    def _try(self, act: Callable[[], None]) -> None:
        """No error here may affect the training."""
        try:
            act()
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                warn(
                    f"cannot record what this rank does, so `lockstep stacks` will not show it: {error}", code="no-black-box"
                )

    def _watch(self) -> None:
        if self._waits is not None:
            waits = waits_at(self._stack, self._collective) or is_loading(self._stack, self._at)
            self._waits(time.time() - self._same_since_s if waits else 0.0)

    def _look(self, ended: str | None = None) -> None:
        record_calls()  # once torch is imported
        now, frame = time.time(), self._frame()
        stack, at, loader, counted = stack_of(frame), self._doing(), loader_at(frame), counts()
        # A frame keeps all its variables alive: a reference here would delay the freeing of the
        # script's tensors.
        del frame
        # "Has moved" compares the whole stack with line numbers, the step and phase, the batches
        # from the loader and the finished collectives. Any of them may stay equal in a loop of one
        # line; all of them do only if nothing gets done.
        if (stack, at, batches_of(loader), counted.num_done) != (self._stack, self._at, self._batches, self._num_done):
            self._stack, self._at, self._batches, self._num_done = stack, at, batches_of(loader), counted.num_done
            self._same_since_s, self._collective, self._handled, self._message = now, None, "", ""
            self._workers, self._awaits, self._switched = (), {}, None
        elif now - self._same_since_s >= _WAITS_AFTER_S and now - self._recording_s >= _WAITS_AFTER_S:
            recording, self._recording_s = read_recording(), now
            self._recent = latest_calls(recording.recent)
            self._collective = pending_call(recording.pending, self._recent)
            self._message = last_message() if transfer_in(stack) else ""
            self._handled = handled_by(self._thread_id)
            self._awaits = awaited_by(self._thread_id)
            self._workers = worker_boxes.look_at_workers(loader) if waits_for_loader(stack) else ()
        del loader
        switched = switches(self._pid, self._native_id) if now > self._same_since_s else None
        self._switched = switched if self._switched is None else self._switched
        self._begun = counted.begun
        self._work.look(now, is_still=now - self._same_since_s >= _WAITS_AFTER_S and not is_communicating(stack))
        self._last = {
            **self._about,
            "time_s": now,
            "since_s": self._same_since_s,
            "worked_s": max((self._work.worked_s, *(worker["since_s"] for worker in self._workers))),
            **({"work": self._work.newest} if self._work.newest else {}),
            "spent": self._spent.blocks,
            "spent_now": self._spent.current(at.get("num_done", 0)),
            **(self._stack_file.fields(self._thread_id) if self._is_sampling() else {}),
            "io_bytes": io_bytes(),
            "cpu_s": time.process_time(),
            "memory": own_memory(),
            "doing": at,
            "stack": stack,
            **({"wakes": switched - self._switched} if switched is not None and self._switched is not None else {}),
            "collective": self._collective,
            **({"handled": self._handled} if self._handled else {}),
            **({"died": died} if (died := dead_threads()) else {}),
            **({"message": self._message} if self._message else {}),
            **({"workers": self._workers} if self._workers else {}),
            **({"awaits": self._awaits} if self._awaits else {}),
            "begun": self._begun,
            "recent": self._recent,
            **({} if _end is None else {"ending": {**_end, "holders": exit_blockers(self._thread_id)}}),
            "ended": ended,
        }
        self._write(self._last)

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._box.write(record)
        except ValueError:  # it is too long
            self._box.write(shortened(record))


def shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth most of a record that did not fit into its box: without outer frames. Pure."""
    short = {**record, "stack": record["stack"][:_FEWEST_FRAMES], "error": record.get("error", "")[-_LEAST_OF_ERROR:]}
    for name in ("ending", "spent", "spent_now", "workers", "awaits"):
        short.pop(name, None)
    return short


_current: Sampler | None = None
"""The sampler of this process."""
_end: dict[str, Any] | None = None
"""How and when the program of this process finished; None: it has not."""


def note_end(how: str) -> None:
    """Record that the program of this process has finished without a failure: threads, exit
    handlers and children may follow."""
    global _end
    _end = {"how": how, "since_s": time.time()}
    if _current is not None:
        _current.look_now()


def has_ended() -> bool:
    """Whether the program of this process has finished without a failure."""
    return _end is not None


def fail_current(error: str) -> None:
    """Keep in this process's black box that its program has failed, with this traceback, and what
    it did before."""
    if _current is not None:
        _current.note_error(error)
        _current.close("failed")


def _before_fork() -> None:
    if _current is not None:
        _current.halt(_FORK_S)
        worker_boxes.before_fork()


def _in_parent() -> None:
    worker_boxes.in_parent()
    if _current is not None:
        _current.resume()


def _in_child() -> None:
    global _current, _end
    _current = _end = None
    worker_boxes.in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
