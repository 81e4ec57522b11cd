"""How much of its time a rank spends writing files, from samples of its stack: one that stores slowly holds up all the others.

What is written in one step is one save, however many files it has. A rank loses time in saving if its newest saves took much of
the time from one to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from lockstep.tools.explain.writes import Write

_MOST_SAVES = 64
_LEAST_S = 4.0
"""As many of the newest saves are judged as took so long together: less may be anything that keeps a disk busy for a moment."""
_LEAST_SHARE, _LEAST_SHARE_AFTER_ONE = 0.2, 0.5
"""Of all time: a rank that saves for longer loses time in that; if only one save is known, and the beginning of the next."""


@dataclass(frozen=True)
class Lost:
    """The time that a rank loses in saving."""

    seconds: float
    """Of a save, on average."""
    every_s: float
    """From the beginning of one to that of the next, on average."""
    line: str
    """At which the script writes, with what does: ``train.py:20 in save (os.fsync)``."""


@dataclass(slots=True)
class _Save:
    began_s: float
    seconds: float = 0.0


class Saving:
    """Follows what one thread writes."""

    def __init__(self) -> None:
        self._saves: deque[_Save] = deque(maxlen=_MOST_SAVES)
        self._at: dict[str, float] = {}
        """Seconds by line."""
        self._step: Hashable = None
        """In which the latest save was seen."""

    def note(self, write: Write, now_s: float, passed_s: float, step: Hashable) -> None:
        """The thread was seen in this write.

        Args:
            write: in progress.
            now_s: the time.
            passed_s: since the sample before.
            step: what counts the thread's steps, now.
        """
        if not self._saves or step != self._step:  # whether or not it was seen elsewhere since: steps may be brief
            self._saves.append(_Save(now_s - passed_s))
        self._step = step
        self._saves[-1].seconds += passed_s
        if (at := str(write)) in self._at or len(self._at) < _MOST_SAVES:
            self._at[at] = self._at.get(at, 0.0) + passed_s

    def lost(self) -> Lost | None:
        """The time that is lost so far; None: hardly any."""
        saves = tuple(self._saves)
        seconds = 0.0
        for count in range(1, len(saves)):
            seconds += saves[-1 - count].seconds  # the latest may go on
            if seconds < _LEAST_S:
                continue
            mean_s, every_s = seconds / count, (saves[-1].began_s - saves[-1 - count].began_s) / count
            if mean_s >= (_LEAST_SHARE_AFTER_ONE if count == 1 else _LEAST_SHARE) * every_s:
                return Lost(round(mean_s, 2), round(every_s, 2), max(self._at, key=self._at.__getitem__))
            if count > 1:
                break
        return None
