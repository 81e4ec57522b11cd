"""Whether a rank waits for its loader's workers, how many batches it has got, and what the workers
do."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from types import FrameType
from typing import Any, TypedDict

from lockstep._base.shapes import Count, Seconds
from lockstep._base.tracebacks.frames import OURS, Frame
from lockstep._events.measure.split import LOADING
from lockstep._tools.explain.errors.processes import ENLARGE_SHM
from lockstep._tools.explain.frames import users_location
from lockstep._tools.explain.interpreter import holds_lock, stack_now

_LOADER = "/torch/utils/data/dataloader.py"
_WAITING = ("_try_get_data", "_get_data", "_shutdown_workers")
_WORKER_ROOM = "/torch/utils/data/_utils/"
_FETCHER = f"{_WORKER_ROOM}fetch.py"
_FETCHING = f"{OURS}_data/"
_WORKER_LOOP = "_worker_loop"
_QUEUE = "/multiprocessing/queues.py"
_PROCESS = "/multiprocessing/process.py"
_LATE_S = 3.0
"""The age in seconds from which a worker's record shows that it runs no Python code."""
CERTAIN = ("stopped", "dead", "shm", "tmpdir", "files", "lost")
"""The causes after which certainly no batch comes."""
_GONE = ("gone", "zombie", "dead")


class _Sampled(TypedDict):
    pid: Count
    time_s: Seconds
    since_s: Seconds
    is_idle: bool
    stack: list[Frame]
    error: str


class WorkerRecord(_Sampled, total=False):
    """What a worker writes of itself, and, in the record of its rank, what the kernel knows of
    it."""

    state: str
    waits_in: str
    in_samples: bool
    reader: Frame | None
    sampler: Count
    switches: Count
    thread: int
    stack_file: str
    stack_fd: Count
    is_now: bool
    """Whether the stack is the present one, asked for while C code holds the GIL."""


def waits_for_loader(stack: Sequence[Sequence[Any]]) -> bool:
    """Whether a thread with this stack waits for loader workers."""
    return any(str(file).endswith(_LOADER) and name in _WAITING for file, _, name in stack)


def is_loading(stack: Sequence[Sequence[Any]], doing: Mapping[str, Any]) -> bool:
    """Whether a thread with this stack waits for its next batch, or makes it.

    ``doing``: what else is known of it, as in its record.
    """
    return waits_for_loader(stack) or doing.get("activity") == LOADING


def loader_at(frame: FrameType | None) -> Any:
    """The iterator of a DataLoader in which a thread with this innermost frame gets a batch, or
    ends the workers; None: in none."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_LOADER) and frame.f_code.co_name in ("__next__", "_shutdown_workers"):
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


# Private attributes of PyTorch. There is no public way to see that a batch has come while a thread
# is at one line again and again, which processes are the workers, or which sample they read.


def batches_of(loader: Any) -> int:
    """The number of batches that a loader's iterator has yielded; 0: unknown."""
    number = getattr(loader, "_num_yielded", 0)
    return number if isinstance(number, int) else 0


def workers_of(loader: Any) -> list[int]:
    """The process ids of the workers of a loader's iterator."""
    pids = []
    with contextlib.suppress(Exception):  # it is being closed by another thread
        pids = [worker.pid for worker in getattr(loader, "_workers", ()) if isinstance(worker.pid, int)]
    return pids


def reader_of(loader: Any) -> Frame | None:
    """The function that reads a sample for a loader's iterator, as a frame at its first line; None:
    it is not Python's."""
    dataset = getattr(loader, "_dataset", None)
    if type(dataset).__module__.startswith("lockstep."):  # what fetches from the script's
        dataset = getattr(dataset, "dataset", None)
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno, code.co_name)


def sample_at(frame: FrameType | None) -> object:
    """A value that differs between the samples that a worker reads one after the other, from its
    innermost frame; None: unknown. Each sample may take a while at one line, so the line does not
    show that the worker moves.
    """
    while frame is not None and not frame.f_code.co_filename.endswith(_FETCHER):
        frame = frame.f_back
    if frame is None:
        return None
    index, read = frame.f_locals.get("idx"), frame.f_locals.get("data")
    return len(read) if isinstance(read, list) else index if isinstance(index, int) else id(index)


def is_starting_worker(frame: FrameType | None) -> bool:
    """Whether a thread with this innermost frame starts a process for a loader (and not one that a
    dataset starts)."""
    while frame is not None and frame.f_back is not None:
        caller = frame.f_back
        if frame.f_code.co_name == "start" and frame.f_code.co_filename.endswith(_PROCESS):
            return caller.f_code.co_filename.endswith(_LOADER)
        frame = caller
    return False


def in_task(stack: Sequence[Frame]) -> tuple[list[Frame], bool]:
    """The part of a worker's stack that is behind PyTorch's own, and lockstep's, and whether it
    waits for its next task."""
    is_idle = any(
        file.endswith(".py") and name == _WORKER_LOOP and _QUEUE in callee[0] for callee, (file, _, name) in pairwise(stack)
    )
    return list(takewhile(lambda frame: _WORKER_ROOM not in frame[0] and not frame[0].startswith(_FETCHING), stack)), is_idle


def with_stack_now(record: Mapping[str, Any], now_s: float) -> Mapping[str, Any]:
    """The record of a worker with its present stack, if C code holds the lock of its interpreter;
    otherwise the same record. May block for some seconds.

    ``now_s``: since 1970.
    """
    since_s = now_s - float(record["time_s"])
    if since_s < _LATE_S or record.get("state") in ("stopped", *_GONE) or not holds_lock(record, since_s):
        return record
    stack, _ = in_task(stack_now(record))
    return {**record, "stack": stack, "is_idle": False, "is_now": True} if stack else record


@dataclass(frozen=True)
class LoaderWorker:
    """A worker that its rank may be waiting for, from the rank's record."""

    rank: int
    record: Mapping[str, Any]
    late_s: float
    """The age of the worker's own part of the record, in seconds."""
    still_s: float
    """The seconds for which the worker has been at its line."""

    @property
    def frames(self) -> list[Frame]:
        """The worker's stack without PyTorch's frames, innermost first; empty: unknown, or the
        worker is idle."""
        if self.record["error"]:
            return []
        frames = [(str(file), int(line), str(name)) for file, line, name in self.record["stack"]]
        is_idle = bool(self.record["is_idle"])
        if self._reader is not None and (is_idle or not users_location(frames)):
            return [self._reader]
        return [] if is_idle else frames

    @property
    def _reader(self) -> Frame | None:
        """The function in which the worker certainly is, whether or not it was seen there; None:
        unknown."""
        reader = self.record.get("reader") if self.record.get("in_samples") else None
        return None if reader is None else (str(reader[0]), int(reader[1]), str(reader[2]))

    @property
    def cause(self) -> str:
        """The reason why no batch comes, as one word; empty: the worker is not known to be
        blocked."""
        if error := str(self.record["error"]):
            return _cause_of(error)
        if self.record.get("is_now"):
            return "holds_gil"
        state = self.record.get("state", "")
        if state in _GONE:
            return "dead"
        if state == "stopped":
            return "stopped"
        # The kernel's state is the present one, and a process that sleeps runs no code. It counts
        # only with a fresh record: an older one may be of another place.
        return str(self.record.get("waits_in", "")) if state == "sleeping" and self.late_s < _LATE_S else ""

    def describe(self) -> str:
        """Which worker it is, and what it does, for the user."""
        pid, error = self.record["pid"], str(self.record["error"])
        said = {
            "dead": "exited",
            "stopped": f"stopped by a signal: `kill -CONT {pid}` resumes it",
            "sleeping": f"has been sleeping for {self.still_s:.0f} s",
            "lock": f"has been waiting for a lock for {self.still_s:.0f} s",
            "flock": f"has been waiting for a file lock for {self.still_s:.0f} s",
            "holds_gil": f"C code, called at this line, has held the GIL for {self.late_s:.0f} s",
        }.get(self.cause, "")
        if error:
            said = f"lost a batch that it could not send: {error}. {_REMEDIES.get(self.cause, '')}".strip()
        elif not said and not self.record["time_s"]:
            said = "was not forked, so its stack is unknown"
        elif not said and self.late_s > _LATE_S:
            said = f"its interpreter has not answered for {self.late_s:.0f} s (C code that holds the GIL)"
        if self._reader is not None and self.frames == [self._reader]:
            said += "; it was reading samples"
        return (
            f"loader worker of rank {self.rank} (pid {pid}): {said or f'making a batch, {self.still_s:.0f} s at this line'}"
        )


_REMEDIES = {
    "shm": f"/dev/shm is full; workers pass batches through it. {ENLARGE_SHM}. Or use fewer workers, smaller batches or a "
    "smaller prefetch_factor",
    "tmpdir": "The path of TMPDIR is too long for the sockets that Python creates in it. Set TMPDIR=/tmp",
    "files": "Too many open files. Raise `ulimit -n`, or call torch.multiprocessing.set_sharing_strategy('file_system')",
}


def _cause_of(error: str) -> str:
    """Why a batch could not be handed over, in a word."""
    if "AF_UNIX path too long" in error:
        return "tmpdir"
    if "No space left on device" in error or "/dev/shm" in error:
        return "shm"
    return "files" if "Too many open files" in error else "lost"
