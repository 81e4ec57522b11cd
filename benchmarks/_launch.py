"""A run that is observed from outside, by the notes that its processes write (see
``workers/going_on.py``)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOOK_EVERY_S = 0.003
_LIMIT_S = 120.0


class Stuck(SystemExit):
    """A run ended before its time, or does not get on: with its last words."""


@dataclass(frozen=True)
class Moment:
    """When to strike: drawn once, the same for all contenders."""

    steps: int
    """The number of steps after a checkpoint."""
    fraction: float
    """The part of a step after which to strike."""


@dataclass(frozen=True)
class Note:
    """A line of the workers'."""

    what: str
    number: int
    pid: int
    time_s: float


class Launch:
    """One run.

    Args:
        processes: its launchers, however many.
        output: where they all write.
        notes: the file of its notes.
    """

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], output: IO[str], notes: Path) -> None:
        self._processes = processes
        self._output = output
        self._path = notes
        self._offset = 0
        self._notes: list[Note] = []

    def notes(self) -> list[Note]:
        """All so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._offset += len(whole)
            fields = (line.split() for line in whole.decode().splitlines())
            self._notes += [Note(what, int(number), int(pid), float(time_s)) for what, number, pid, time_s in fields]
        return self._notes

    def until(self, found: Callable[[list[Note]], list[Note]], limit_s: float = _LIMIT_S) -> Note:
        """Wait until there are such notes; the first of them. Raises Stuck if that takes too long,
        or all launchers end."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and not self._has_ended():
            if those := found(self.notes()):
                return those[0]
            time.sleep(LOOK_EVERY_S)
        how = f"ended with status {[p.poll() for p in self._processes]}" if self._has_ended() else "does not get on"
        self._output.seek(0)
        command = " ".join(map(str, self._processes[0].args))  # type: ignore[arg-type] # it was started with a list
        raise Stuck(f"{command} {how}. Its last words:\n{self._output.read()[-4000:]}")

    def _has_ended(self) -> bool:
        return all(process.poll() is not None for process in self._processes)

    def wait_for(self, moment: Moment, every: int, warm_up_s: float) -> None:
        """Return at that moment, after the first checkpoint that is far enough from the start, or
        from the last restart.

        Args:
            moment: when, after that checkpoint.
            every: so many steps from one checkpoint to the next.
            warm_up_s: how far at least.
        """
        begun = self.until(lambda notes: steps_of_last(notes)[:1])
        warm = self.until(lambda notes: [n for n in steps_of_last(notes) if n.time_s > begun.time_s + warm_up_s])
        target = -(-warm.number // every) * every + moment.steps
        at = self.until(lambda notes: [note for note in steps_of_last(notes) if note.number >= target])
        time.sleep(moment.fraction * (at.time_s - begun.time_s) / (at.number - begun.number))


def steps_of_last(notes: list[Note]) -> list[Note]:
    """The steps of the process that is rank 0 now."""
    steps = [note for note in notes if note.what == "step"]
    return [note for note in steps if note.pid == steps[-1].pid]
