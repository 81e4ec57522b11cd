"""The fields of a black box's record that readers rely on. The file may be damaged, or written by
another user."""

from __future__ import annotations

from typing import Annotated, TypedDict

from lockstep._base.shapes import MOST_RANKS, Count, Ranks, Seconds
from lockstep._base.tracebacks.frames import Frame
from lockstep._tools.explain.loader_workers import WorkerRecord
from lockstep._tools.explain.threads import DeadThread
from lockstep._tools.explain.time_samples import Block


class _Called(TypedDict):
    text: str
    number: Count
    group: str
    members: list[int]


class _Collective(_Called, total=False):
    noted: str
    via: str


class _Holder(TypedDict):
    kind: str
    what: str
    stack: list[Frame]


class _Awaited(TypedDict):
    kind: str
    words: str


class _Awaits(_Awaited, total=False):
    file: str
    holder: str


class _Ending(TypedDict):
    how: str
    since_s: Seconds
    holders: list[_Holder]


class _Doing(TypedDict):
    activity: str


class _DoingMore(_Doing, total=False):
    step: Count
    num_done: Count
    met: bool
    library: str


class _Needed(TypedDict):
    rank: Annotated[int, lambda rank: 0 <= rank < MOST_RANKS]
    host: str
    pid: Count
    machine: str | None
    time_s: Seconds
    doing: _DoingMore
    stack: list[Frame]
    collective: _Collective | None
    ended: str | None


class Record(_Needed, total=False):
    """The fields that readers rely on. (A record has more: ``sampler`` writes them.)"""

    world_size: Ranks
    launch: str
    began_s: Seconds
    since_s: Seconds
    worked_s: Seconds
    spent: list[Block]
    spent_now: Block
    sampler: Count
    switches: Count
    thread: int
    stack_file: str
    stack_fd: Count
    io_bytes: Count
    memory: dict[str, Count]
    cpu_s: Seconds
    work: str
    ending: _Ending
    status: int
    handled: str
    wakes: int
    died: list[DeadThread]
    workers: list[WorkerRecord]
    awaits: _Awaits
    package: str
    error: str
    joined: str
    program: str
    begun: dict[str, int]
    recent: list[tuple[int, str, str, str, str]]
    message: str
