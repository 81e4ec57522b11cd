"""Reads a run's event log: its events, its launches, its steps as they count after all resumes, and
what is new in it.

The file is only appended to. A launch that was killed has written events of steps after its last
checkpoint, and the next launch writes these steps again. So a step may be there several times, and
the one of the last launch that took it counts::

    launch 1   start               steps 1 to 100     (killed; newest checkpoint: 80)
    launch 2   start  resume 80    steps 81 to 150    (killed; newest checkpoint: 120)
    launch 3   start  resume 120   steps 121 to 200

    counts:    1 to 80 of launch 1, 81 to 120 of launch 2, 121 to 200 of launch 3

A file may be damaged, from another version, or written by another user. Only regular files of
bounded size are read, and lines that do not match the table in ``events`` are skipped."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep._base.regular_files import MOST_LINE_BYTES, MOST_LINES_BYTES, open_to_read, read_lines
from lockstep._events.format import FILE_NAME, REPEATED, Event, kind_of, number_in, read_event, repeated_after

_SPARE = 4
"""Lines of a kind that are kept by a reader that needs only the last: the launch may have been
killed while it wrote one."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The part of an event log from one ``start`` to the next."""

    start: Event
    """The event ``start``; empty: it is missing."""
    events: tuple[Event, ...]
    """All events in order, including the start."""
    resumed_after: int | None
    """The step after which the launch resumed; None: it has repeated nothing."""
    counts_until: float
    """The last step that counts: later steps of this launch were repeated."""

    @property
    def last_step(self) -> int | None:
        """The last step of this launch; None: it took none."""
        steps = [event.get("step") for event in self.events if event["event"] != "resume"]
        return max((step for step in steps if isinstance(step, int)), default=None)

    @property
    def times_s(self) -> list[float]:
        """The times at which its events were written, in seconds since 1970."""
        return [time_s for event in self.events if (time_s := number_in(event, "time_s")) is not None]

    @property
    def ended_s(self) -> float | None:
        """The time at which its last event was written; None: unknown."""
        return max(self.times_s, default=None)

    @property
    def has_ended(self) -> bool:
        """Whether the script finished."""
        return self.last("end") is not None

    def last(self, kind: str) -> Event | None:
        """Returns its last event of a kind."""
        return next((event for event in reversed(self.events) if event["event"] == kind), None)

    @property
    def history(self) -> list[Event]:
        """The events without the repeated ones."""
        return [e for e in self.events if e["event"] not in REPEATED or (number_in(e, "step") or 0) <= self.counts_until]


def read_events(run_dir: Path, damaged: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a run, in order. Lines that are truncated (the launch was killed while writing)
    or damaged are skipped.

    Args:
        damaged: a list to which the numbers of such lines, from 1, are appended; not that of a last
            line still being written.

    Raises:
        FileNotFoundError: the directory contains no event log.
        OSError: it cannot be read, is too large, or is not a regular file.
    """
    for number, line in enumerate(read_lines(run_dir / FILE_NAME), start=1):
        if (event := read_event(line)) is not None:
            yield event
        elif damaged is not None and line.endswith(b"\n"):
            damaged.append(number)


def read_launches(run_dir: Path) -> list[Launch]:
    """Returns the launches of a run, each with only the last event of each kind: of millions of
    lines, few are parsed.

    Raises:
        FileNotFoundError: the directory contains no event log.
        OSError: it cannot be read, is too large, or is not a regular file.
    """
    return launches(_last_of_each_kind(read_lines(run_dir / FILE_NAME)))


def _last_of_each_kind(lines: Iterable[bytes]) -> Iterator[Event]:
    newest: dict[str, deque[tuple[int, bytes]]] = {}

    def read() -> list[Event]:
        found = []
        for several in newest.values():
            # Newest first and only until one can be read: of millions of lines, one of each kind is
            # parsed.
            readable = ((number, event) for number, line in reversed(several) if (event := read_event(line)) is not None)
            found += [one] if (one := next(readable, None)) else []
        return [event for _, event in sorted(found, key=lambda one: one[0])]

    for number, line in enumerate(lines):
        if kind := kind_of(line):
            if _begins(kind, newest):
                yield from read()
                newest.clear()
            newest.setdefault(kind, deque(maxlen=_SPARE)).append((number, line))
    yield from read()


def launches(events: Iterable[Event]) -> list[Launch]:
    """The launches in an event log, in order. Pure."""
    parts: list[list[Event]] = []
    seen = set[str]()
    for event in events:
        if not parts or _begins(event["event"], seen):
            parts.append([])
            seen.clear()
        parts[-1].append(event)
        seen.add(event["event"])
    resumed = [next((step for event in part if (step := repeated_after(event)) is not None), None) for part in parts]
    return [
        Launch(
            start=part[0] if part[0]["event"] == "start" else {},
            events=tuple(part),
            resumed_after=after,
            counts_until=until,
        )
        for part, after, until in zip(parts, resumed, counts_until(resumed), strict=True)
    ]


def _begins(kind: str, seen: Collection[str]) -> bool:
    """Returns whether an event of this kind is the first of a launch. ``seen``: the kinds of the
    previous launch. A launch that resumes after its first step is another one, whose start is
    missing."""
    return kind == "start" or (kind == "resume" and any(old in seen for old in (kind, *REPEATED)))


def counts_until(resumed_after: Sequence[int | None]) -> list[float]:
    """Returns for each launch the last step that counts: later steps were repeated by a launch that
    resumed after it. Pure.

    Args:
        resumed_after: the step after which each launch resumed, as in ``Launch``.
    """
    # From the last launch backwards, and never more than a later launch has left: resumes after
    # steps 80 and then 50 (a damaged checkpoint) leave 50, 50 and all.
    until = [math.inf]
    for step in reversed(resumed_after[1:]):
        until.append(until[-1] if step is None else min(until[-1], step))
    return until[: len(resumed_after)][::-1]


def history(events: Iterable[Event]) -> list[Event]:
    """Returns the events without those repeated after a ``resume``, as if there had been no
    interruption. Pure."""
    return [event for launch in launches(events) for event in launch.history]


def read_history(run_dir: Path) -> list[Event]:
    """The ``history`` of a run.

    Raises:
        FileNotFoundError: the directory contains no event log.
        OSError: it cannot be read, is too large, or is not a regular file.
    """
    return history(read_events(run_dir))


_BLOCK_BYTES = 1 << 24


class Tail:
    """A reader of new events in an event log. It reads complete lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = 0
        self._at = 0
        self._rest = b""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the new events, and whether they are all events because the file was replaced or
        truncated."""
        try:
            with open_to_read(self._path, MOST_LINES_BYTES) as file:
                status = os.fstat(file.fileno())
                # By the number of the file: --fresh moves the old run away, and the new one writes
                # another file at this path.
                is_replaced = status.st_ino != self._file or status.st_size < self._at
                if is_replaced:
                    self._file, self._at, self._rest = status.st_ino, 0, b""
                file.seek(self._at)
                events = []
                while data := file.read(_BLOCK_BYTES):
                    self._at += len(data)
                    # The rest is kept for the next read: a writer may be in the middle of that
                    # line.
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    if self._rest[:1] != b"{" or len(self._rest) > MOST_LINE_BYTES:
                        # It is no event, whatever follows until the line's end, so none of it is
                        # kept.
                        self._rest = self._rest and b"\0"
                    events += [event for line in lines if (event := read_event(line)) is not None]
                return events, is_replaced
        except OSError:  # it has not begun, or the file server does not answer
            return [], False


def has_new_checkpoint(event_log: Tail) -> bool:
    """Returns whether a checkpoint has been written since the log was last read. (Best weights are
    none.)"""
    events, _ = event_log.read()
    return any(event["event"] == "checkpoint" and event.get("kind") == "checkpoint" for event in events)
