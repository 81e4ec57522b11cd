"""Processes whose interpreter does not answer: whether C code holds its lock (the GIL), and the
line that called that code. (Linux.)

The kernel's count of context switches shows it. A thread that wants the lock asks for it every
5 ms, so the sampler's thread, which otherwise sleeps most of the time, gives up its processor some
200 times a second::

    sampler's thread         looks, sleeps            10 to 30 switches/s, and writes records: not late
    ... waits for the GIL    sem_timedwait(5 ms) ...  ~200 switches/s  and no record: C code holds it
    ... has no processor     runnable, never runs     ~0 switches/s    and no record: unknown

Only a process of which this is seen is asked for its stack, by a signal to that very thread. The
main thread is not interrupted, since that would end its system call early (a ``sleep`` returns).
``faulthandler`` writes the stack in its C handler, without the lock. It walks frames that nothing
protects, which is safe only because no thread runs Python code while C code holds the lock;
therefore the wait is checked again, by probes, right before the signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep._base.nofollow import open_to_write
from lockstep._base.stopping import catches, is_left_alone
from lockstep._base.tracebacks.frames import Frame

SIGNAL = signal.SIGRTMAX - 3
"""The signal that asks for a stack, which nothing else uses. It kills a process that does not
handle it, and is never sent to one."""
_LEAST_PER_S = 40.0
"""The number of switches per second from which a thread counts as waiting for the lock. A sampler
next to busy Python code has 20 to 30, since it waits for the lock whenever it wakes."""
_PROBES, _MOST_PROBES, _PROBE_S = 5, 20, 0.05
"""The number of probes in a row that must show the wait, of how many, and the seconds of each."""
_LEAST_OF_PROBE = 2
"""The least number of switches in a probe."""
_ANSWER_S = 1.0
_POLL_S = 0.02
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_THREAD = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class StackFile:
    """Where this process writes its stacks when it is sent ``SIGNAL``. It stays open for the life
    of the process.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        global _is_registered
        self._path, self._fd = path.absolute(), -1
        if is_left_alone(SIGNAL) or (_is_registered and signal.getsignal(SIGNAL) is signal.SIG_DFL):
            self._fd = open_to_write(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644, within=self._path.parents[1]
            )
            self._register()
            _is_registered = True

    def _register(self) -> None:
        # `register` keeps what it has registered before, even if that is undone.
        if _is_registered and not catches(os.getpid(), SIGNAL):
            faulthandler.unregister(SIGNAL)
        faulthandler.register(SIGNAL, file=self._fd, all_threads=True)

    def fields(self, thread_id: int) -> dict[str, Any]:
        """What ``holds_lock`` and ``stack_now`` need in a record. Called from the sampler's thread.

        ``thread_id``: of the thread whose stack is wanted.
        """
        own = threading.get_native_id()
        if (count := switches(os.getpid(), own)) is None:
            return {}
        about: dict[str, Any] = {"sampler": own, "switches": count}
        if self._fd >= 0 and signal.getsignal(SIGNAL) is signal.SIG_DFL:  # else the script uses it
            # A library that puts back the handlers of all signals, as Lightning does after `fit`,
            # undoes this one: Python does not know of it.
            if not catches(os.getpid(), SIGNAL):
                self._register()
            about |= {"stack_file": str(self._path), "stack_fd": self._fd, "thread": thread_id}
        return about


def stack_file(path: Path) -> StackFile:
    """The stack file of this process, made at the first call. A forked process has a separate
    one."""
    global _own
    if _own is None or _own[0] != os.getpid():
        _own = (os.getpid(), StackFile(path))
    return _own[1]


def fields_of_fork(thread_id: int) -> dict[str, Any]:
    """``StackFile.fields`` for this fork of a process that has one, into which this one writes as
    well."""
    return {} if _own is None else _own[1].fields(thread_id)


_own: tuple[int, StackFile] | None = None
_is_registered = False
"""Whether this process, or the one that it was forked from, answers the signal already: a fork does
so into its own file."""


def holds_lock(record: Mapping[str, Any], since_s: float) -> bool:
    """Whether C code has held the interpreter's lock of a process of this machine since it last
    reported.

    Args:
        record: the newest of its black box.
        since_s: how long ago that was written.
    """
    if "switches" not in record:
        return False
    now = switches(int(record["pid"]), int(record["sampler"]))
    return now is not None and now - int(record["switches"]) > _LEAST_PER_S * since_s


def stack_now(record: Mapping[str, Any]) -> list[Frame]:
    """The present stack of a process in which C code holds the GIL (``holds_lock``), innermost
    frame first. Blocks for up to 2 s. Empty: it gives none, or has released the lock. Until it
    reports
    again it is in the same call, so it is asked only until it has answered once."""
    pid, reported_s = int(record["pid"]), float(record["time_s"])
    known_s, frames = _answers.get(pid, (0.0, []))
    if known_s != reported_s and (frames := _ask(record)):
        _answers[pid] = reported_s, frames
    return frames


_answers: dict[int, tuple[float, list[Frame]]] = {}
"""The time of each process's last report, and the stack that it gave since, by process id."""


def _ask(record: Mapping[str, Any]) -> list[Frame]:
    path, pid = Path(record.get("stack_file", "")), int(record["pid"])
    # what ``os.kill`` signals is the main thread
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
    try:
        file = path.stat()
        is_open = os.path.samestat(Path(f"/proc/{pid}/fd/{record['stack_fd']}").stat(), file)
    except (OSError, KeyError):
        return []
    if tgkill is None or not (is_open and stat.S_ISREG(file.st_mode) and catches(pid, SIGNAL)):
        return []
    if not _keeps_waiting(pid, int(record["sampler"])):
        return []
    if tgkill(pid, int(record["sampler"]), int(SIGNAL)) != 0:
        return []
    deadline, text = time.monotonic() + _ANSWER_S, ""
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        seen, text = text, _read_from(path, file.st_size)
        if text and text == seen:  # it is complete
            return parse_stacks(text).get(int(record["thread"]), [])
    return []


def _keeps_waiting(pid: int, thread: int) -> bool:
    """Whether a thread is seen to wait for the lock now, and all the time."""
    in_a_row = 0
    for _ in range(_MOST_PROBES):
        before = switches(pid, thread)
        time.sleep(_PROBE_S)
        after = switches(pid, thread)
        if before is None or after is None:
            return False
        in_a_row = in_a_row + 1 if after - before >= _LEAST_OF_PROBE else 0
        if in_a_row == _PROBES:
            return True
    return False


def parse_stacks(text: str) -> dict[int, list[Frame]]:
    """The stack of each thread in what ``faulthandler`` has written, innermost frame first, by its
    identity. Pure."""
    stacks: dict[int, list[Frame]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            frames = stacks.setdefault(int(thread[1], 16), [])
        elif frame := _FRAME.match(line):
            frames.append((frame[1], int(frame[2]), frame[3]))
    return stacks


def _read_from(path: Path, offset: int) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes()[offset:].decode(errors="replace")
    return ""


def switches(pid: int, thread: int) -> int | None:
    """The number of times that a thread has given up its processor to wait; None: unknown."""
    with contextlib.suppress(OSError):
        found = _SWITCHES.search(Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace"))
        return None if found is None else int(found[1])
    return None
