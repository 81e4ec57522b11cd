"""What a process gets done while its main thread stays at one line: itself, and the processes that it has started.

A rank that computes in one long call, writes a large file or waits for a process that does keeps the others waiting with good
reason; one that sleeps, or waits for what never comes, uses nothing. Measured are the processor time of the process and of its
descendants, the bytes that they read and write, what is written to disk while it is blocked, and how often its forks wake up: a
loader worker that waits for a slow disk again and again uses little else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lockstep.tools.explain.process import Usage, descendants, io_bytes, is_blocked, usage_of, written_bytes

BUSY_BYTES = 1 << 18
"""A process that reads or writes more than this between two samples is busy, at whatever line: it saves a checkpoint, say."""
LEAST_SHARE = 0.03
"""Of one core: less is not work. (Where there are many more processes than cores, each gets little.)"""
_SPAN_S = 4.0
_FLUSHED_BYTES = 1 << 22
_LEAST_WAKES = 2
"""In ``_SPAN_S``. A loader worker without a task wakes once in 5 s."""


@dataclass(frozen=True)
class Work:
    """What was done while the main thread stayed where it was, and by whom."""

    how: str
    """``computes``, ``reads or writes``, ...; ``wakes``: it does a little, again and again."""
    pid: int = 0
    """Of the descendant that does it; 0: the process itself."""
    name: str = ""
    """Of the descendant's program."""

    def __str__(self) -> str:
        if not self.pid:
            return "it sleeps or polls again and again" if self.how == "wakes" else f"it {self.how}"
        return f"its process {self.pid}, {self.name}, {'is at work' if self.how == 'wakes' else self.how}"


@dataclass(frozen=True)
class Snapshot:
    """What a process and its descendants have used up to a moment."""

    time_s: float
    own_s: float
    """Processor time of the process, in seconds."""
    children: Mapping[int, Usage]
    """Of its descendants, by process id."""
    is_blocked: bool = False
    """Whether the main thread is blocked in the kernel: ``fsync`` shows no bytes before its end."""
    written_bytes: int = 0
    """By the whole machine."""


class WorkMeter:
    """Measures the work of this process. One thread calls it, whose own processor time does not count.

    ``is_fork``: whether a process, given its id, is a fork of this one.
    """

    def __init__(self, is_fork: Callable[[int], bool]) -> None:
        self.worked_s = time.time()
        """When work was last seen, in seconds since 1970."""
        self.newest: Work | None = None
        """What that was; None: the main thread has moved since."""
        self._is_fork = is_fork
        self._io_bytes = 0
        self._before: Snapshot | None = None

    def look(self, now_s: float, *, is_still: bool) -> None:
        """Called twice a second.

        Args:
            now_s: seconds since 1970.
            is_still: whether the main thread has stayed at one line for a while, and not in code in which ranks wait for each
                other.
        """
        if not is_still:
            self._before = self.newest = None
        if io_bytes() - self._io_bytes > BUSY_BYTES:
            self.worked_s, self.newest = now_s, Work("reads or writes")
        if is_still and (self._before is None or now_s - self._before.time_s >= _SPAN_S):
            before, self._before = self._before, _measure(now_s)
            for work in () if before is None else work_between(before, self._before):
                if work.how != "wakes" or self._is_fork(work.pid):
                    self.worked_s, self.newest = now_s, work
                    break
        self._io_bytes = io_bytes()  # without what was read just now


def work_between(before: Snapshot, after: Snapshot) -> Iterator[Work]:
    """What was done between two moments that is worth the name, most important first. Pure."""
    span_s = after.time_s - before.time_s
    if after.own_s - before.own_s >= LEAST_SHARE * span_s:
        yield Work("computes")
    if before.is_blocked and after.is_blocked and after.written_bytes - before.written_bytes > _FLUSHED_BYTES:
        yield Work("waits for a disk, and data is being written")
    new = Usage("", 0.0, 0, 0)
    changes = [(pid, usage, before.children.get(pid, new)) for pid, usage in after.children.items()]
    if sum(usage.cpu_s - earlier.cpu_s for _, usage, earlier in changes) >= LEAST_SHARE * span_s:
        pid, usage, _ = max(changes, key=lambda change: change[1].cpu_s - change[2].cpu_s)
        yield Work("computes", pid, usage.name)
    for pid, usage, earlier in changes:
        if usage.io_bytes - earlier.io_bytes > BUSY_BYTES:
            yield Work("reads or writes", pid, usage.name)
    for pid, usage, earlier in changes:
        if pid in before.children and usage.num_wakes - earlier.num_wakes >= _LEAST_WAKES:
            yield Work("wakes", pid, usage.name)


def _measure(now_s: float) -> Snapshot:
    times = os.times()  # with those of children that have ended
    own_s = time.process_time() - time.thread_time() + times.children_user + times.children_system
    children = {pid: usage for pid in descendants() if (usage := usage_of(pid)) is not None}
    return Snapshot(now_s, own_s, children, is_blocked(), written_bytes())
