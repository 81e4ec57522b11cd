"""Where the main thread of a process spends its time, from samples: by function and line of the
script.

Samples are counted in blocks of ten seconds since 1970, so the blocks of all ranks of a machine
cover the same times and can be compared. Each record of a black box has the newest blocks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import TypedDict

from lockstep._base.tracebacks.frames import OURS, Frame, owner
from lockstep._tools.explain.file_calls import file_call
from lockstep._tools.explain.threads import doing_at

BLOCK_S = 10.0
NUM_BLOCKS = 6
"""The number of blocks in a record."""
_MOST_PLACES, _MOST_FUNCTIONS = 8, 6
_MOST_FRAMES = 60
_WAITS = (f"{OURS}_world/comm", f"{OURS}_sync/", f"{OURS}_loop/", "/torch/distributed/", "/torch/nn/parallel/distributed.py")
"""Code in which ranks wait for each other: if a thread's innermost frame is there."""
_BACKWARD = "_engine_run_backward"
"""The function in which DistributedDataParallel waits for others, in C++."""
WAITING = ""
"""The place of a thread that waits for other ranks, or computes gradients, which looks the same."""


class Place(TypedDict):
    """Samples of a block at one line."""

    file: str
    function: str
    line: int
    doing: str
    """What the thread does there, for the user."""
    call: str
    """The function that reads or writes a file there; empty: none does."""
    count: int
    visits: int
    """The number of steps in which the thread was seen there."""


class Block(TypedDict):
    """Samples of one interval of time."""

    number: int
    """The number of the interval since 1970."""
    count: int
    waiting: int
    """The number of samples in which the thread waited for other ranks."""
    steps: int
    """The number of steps that were seen."""
    begun: int
    """The number of finished collectives at the beginning of the block."""
    done: int
    """The number of finished collectives at the end of the block."""
    computed: float
    """The share of the block in which the main thread had a processor."""
    starved: float
    """The share of the block in which a thread of the process wanted a processor and had none."""
    places: list[Place]
    functions: list[Place]
    """The places of the script's functions, counted with all that they call and the waiting
    there."""


Key = tuple[str, str, int, str, str]
"""A place: file, function, line, what the thread does, and the call."""


class _Seen:
    """The number of times that a thread was seen at each place, and in how many steps.

    Args:
        before: the places where it was seen last, in the block before.
        step: the step of that sample: a visit that began before does not begin in this block.
    """

    def __init__(self, before: Collection[Key | str], step: int) -> None:
        self.count: Counter[Key | str] = Counter()
        self.steps: defaultdict[Key | str, set[int]] = defaultdict(set)
        self._lines: defaultdict[Key | str, Counter[int]] = defaultdict(Counter)
        self._goes_on, self._step = before, step

    def note(self, places: Mapping[Key | str, int], step: int) -> None:
        """Note that the thread was seen at these places, with a line each, in this step."""
        for place, line in places.items():
            self.count[place] += 1
            self.steps[place].add(step)
            self._lines[place][line] += 1

    def most(self, number: int) -> list[Place]:
        """The places where the thread was seen most. Of equally frequent ones, the first noted
        comes first."""
        places = []
        for key, count in self.count.most_common(number):
            if isinstance(key, tuple):
                visits = len(self.steps[key] - ({self._step} if key in self._goes_on else set()))
                file, function, _, doing, call = key
                [(line, _)] = self._lines[key].most_common(1)
                places.append(
                    Place(file=file, function=function, line=line, doing=doing, call=call, count=count, visits=visits)
                )
        return places


class TimeSamples:
    """The newest blocks of this process. Made by the thread whose time it is."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        """The clock of the thread's processor time."""
        self._cpu_s = 0.0
        self.blocks: list[Block] = []
        """The newest complete blocks, oldest first."""
        self._number = -1
        self._is_whole = False
        """Whether the block that is being filled was begun at its beginning."""
        self._lacked: dict[str, float] = {}
        self._begun = 0
        self._last: tuple[Key | str, Collection[Key | str], int] = (WAITING, (), -1)
        """Where the thread was last seen, in which functions, and in which step."""
        self._clear()

    def _clear(self) -> None:
        place, functions, step = self._last
        self._at, self._in = _Seen([place], step), _Seen(functions, step)

    def note(self, frame: FrameType | None, step: int, num_done: int, now_s: float) -> None:
        """Note that the thread was seen at this frame, in this step, after so many collectives.
        Called from the sampler's thread."""
        number = int(now_s // BLOCK_S)
        if number != self._number:
            if number == self._number + 1 and self._is_whole:
                self._keep(num_done)
            self._is_whole = number == self._number + 1
            self._number, self._begun, self._lacked = number, num_done, _lacked()
            self._cpu_s = time.clock_gettime(self._clock)
            self._clear()
        place, functions = place_of(frame), functions_at(frame)
        self._last = place, functions, step
        self._at.note({place: place[2] if isinstance(place, tuple) else 0}, step)
        self._in.note(functions, step)

    def _keep(self, num_done: int) -> None:
        before = self._lacked
        lacked_s = max((now_s - before.get(task, 0.0) for task, now_s in _lacked().items()), default=0.0)
        self.blocks = [*self.blocks[1 - NUM_BLOCKS :], self.current(num_done, lacked_s)]

    def current(self, num_done: int, lacked_s: float = 0.0) -> Block:
        """The block that is being filled, up to now. ``lacked_s``: the seconds for which a thread
        had no processor."""
        return Block(
            number=self._number,
            count=self._at.count.total(),
            waiting=self._at.count[WAITING],
            steps=len(set().union(*self._at.steps.values())),
            begun=self._begun,
            done=num_done,
            computed=round((time.clock_gettime(self._clock) - self._cpu_s) / BLOCK_S, 3),
            starved=round(lacked_s / BLOCK_S, 3),
            places=self._at.most(_MOST_PLACES + 1),
            functions=self._in.most(_MOST_FUNCTIONS),
        )


def place_of(frame: FrameType | None) -> Key | str:
    """Where a thread with this innermost frame spends its time: a line of the script, or
    ``WAITING``."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    if not frames or any(part in frames[0].f_code.co_filename for part in _WAITS):
        return WAITING
    users = None
    for each in frames:
        if owner(each.f_code.co_filename) == "user":
            users = each
            break
        if each.f_code.co_name == _BACKWARD:
            return WAITING
    call, users = file_call(frames) or ("", users)
    if users is None:
        users = frames[0]
    code = users.f_code
    stack = [(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in frames]
    return code.co_filename, code.co_name, users.f_lineno, doing_at(stack), call


def functions_at(frame: FrameType | None) -> dict[Key | str, int]:
    """The functions of the script in which a thread with this innermost frame is, innermost first,
    and at which line of each. (Their keys have no line: one that is at another line in each step is
    in each step all the same.)"""
    stack: list[Frame] = []
    while frame is not None and len(stack) < _MOST_FRAMES:
        stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    found: dict[Key | str, int] = {}
    for number, (file, line, name) in enumerate(stack):
        if name != "<module>" and owner(file) == "user":
            found.setdefault((file, name, 0, doing_at(stack[number:]), ""), line)
    return found


def _lacked() -> dict[str, float]:
    """The seconds for which each thread of this process has wanted a processor and had none, since
    it began."""
    lacked = {}
    for task in Path("/proc", str(os.getpid()), "task").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            lacked[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return lacked
