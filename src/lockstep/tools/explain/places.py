"""What a thread is doing, and at which line of the script, from its stack; and where it spends the time of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from lockstep.base.tracebacks.frames import owner
from lockstep.tools.explain.writes import write_in

_MOST_PLACES = 4
"""Per window: where most of its time goes."""
_USUAL = 3.0
"""A step is usual if it is busy for at most this multiple of the median: an evaluation, or a first use, makes a longer one."""


class Place(NamedTuple):
    """What a thread was seen at."""

    activity: str
    """One of ``split.SAMPLED``."""
    line: str
    """Of the script, with file and function; where none of its code is running: of what is."""


class Spent(NamedTuple):
    """What steps have spent at a place, in seconds."""

    place: Place
    usual_s: float
    """In steps that took about as long as most."""
    whole_s: float


class Places:
    """Where a thread spends the time of its steps, as far as samples tell."""

    def __init__(self) -> None:
        self._step: dict[Place, float] = {}
        self._steps: list[Mapping[Place, float]] = []

    def note(self, place: Place, seconds: float) -> None:
        """The thread was seen there, ``seconds`` after the sample before. Called from the sampler's thread."""
        step = self._step
        step[place] = step.get(place, 0.0) + seconds

    def begin(self) -> None:
        """The steps begin: what came before does not count."""
        self._step, self._steps = {}, []

    def end_step(self) -> None:
        """A step has ended."""
        self._steps.append(self._step)
        self._step = {}

    def take(self, busy_s: Sequence[float]) -> list[Spent]:
        """What the latest steps, which were busy for so long each, have spent where; then forget all steps."""
        steps, self._steps = self._steps, []
        longest_s = _USUAL * sorted(busy_s)[len(busy_s) // 2] if busy_s else 0.0
        usual: dict[Place, float] = {}
        whole: dict[Place, float] = {}
        for busy, step in zip(busy_s, steps, strict=True):
            for place, seconds in tuple(step.items()):
                whole[place] = whole.get(place, 0.0) + seconds
                if busy <= longest_s:
                    usual[place] = usual.get(place, 0.0) + seconds
        kept = {place for spent in (usual, whole) for place in sorted(spent, key=spent.__getitem__)[-_MOST_PLACES:]}
        return [Spent(place, usual.get(place, 0.0), whole[place]) for place in sorted(kept)]


def where(frame: FrameType | None) -> Place:
    """What a thread is doing, and at which line of the script, from its innermost frame."""
    if (write := write_in(frame)) is not None:
        return Place("saving", str(write))
    activity = line = ""
    innermost = frame
    while frame is not None and not (activity and line):
        code = frame.f_code
        activity = activity or activity_at(code.co_filename, code.co_name)
        if not line and owner(code.co_filename) == "user":
            line = line_of(frame)
        frame = frame.f_back
    if not line and innermost is not None:
        line = line_of(innermost)
    return Place(activity or "script", line)


def line_of(frame: FrameType) -> str:
    """Where a frame is, for the user."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def activity_at(file: str, name: str) -> str:
    """What a thread with this frame in its stack is doing, one of ``split.ACTIVITIES``; empty: the frame does not tell."""
    if "/torch/" not in file:
        return ""
    if "/torch/utils/data/" in file:
        return "data"
    if name == "_engine_run_backward":
        return "backward"
    if "/torch/optim/" in file:
        return "script"
    return "forward" if file.endswith("/torch/nn/modules/module.py") and name.endswith("_call_impl") else ""
