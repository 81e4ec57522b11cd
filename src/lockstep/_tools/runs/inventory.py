"""The runs in a directory and their states, read from their files without importing torch or
trusting any file.

A run may be active while it is read, may have been killed at any point, and may not be a run at
all: problems are reported as remarks on the run concerned.
"""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep._base.errors import CheckpointError, ConfigError
from lockstep._events.format import FILE_NAME as EVENT_LOG
from lockstep._events.history import Launch, read_launches
from lockstep._state.checkpoint.manifest import Manifest, NewerFormatError, verify_file
from lockstep._state.checkpoint.store import BEST, Store
from lockstep._state.rundir.fixed_settings import read_fixed_settings
from lockstep._state.rundir.lock import holder_of

RUNNING, FINISHED, INTERRUPTED, FAILED, UNREADABLE = "running", "finished", "interrupted", "failed", "unreadable"

_BIRTH = "birth.json"
_MARKERS = (_BIRTH, EVENT_LOG, "checkpoints")
"""A directory with any of these is, or was, a run directory."""
_BAD_FILE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors raised on reading a damaged file. (``ConfigError`` is a ``ValueError``.)"""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The checkpoint from which a run would resume."""

    name: str
    step: int
    epoch: int
    """The epoch, from 0."""
    time_s: float
    num_bytes: int
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, as far as its files describe it."""

    path: Path
    state: str
    active_s: float
    """Time of the last activity, in seconds since 1970."""
    holder: str | None = None
    """The process in which it is running."""
    remarks: tuple[str, ...] = ()
    """Problems found, in sentences."""
    script: str | None = None
    args: tuple[str, ...] = ()
    """The script's arguments in the newest known launch."""
    shards: int | None = None
    step: int | None = None
    """The last step known to have been taken."""
    checkpoint: Saved | None = None
    best: float | None = None
    """The metric of the weights kept by ``team.best``."""
    world_sizes: tuple[int | None, ...] = ()
    """The number of processes of each launch."""
    ran_s: float | None = None

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.absolute().name

    def command(self, script: str) -> str:
        """The script, by this name, with its arguments."""
        return shlex.join([script, *self.args])

    def as_json(self) -> dict[str, Any]:
        """A JSON object for other programs."""
        fields = asdict(self)
        fields["directory"] = str(fields.pop("path"))
        if self.checkpoint is not None:
            fields["checkpoint"]["bytes"] = fields["checkpoint"].pop("num_bytes")
        return {**fields, "name": self.name, "num_launches": len(self.world_sizes)}


def is_run(directory: Path) -> bool:
    """Whether a directory is, or was, a run directory."""
    return any((directory / name).exists() for name in _MARKERS)


def read_runs(directory: Path) -> list[Run]:
    """The runs in a directory, the most recently active one last.

    The directory may itself be a run directory.

    Raises:
        OSError: it cannot be read.
    """
    if is_run(directory):
        return [read_run(directory)]
    runs = []
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or not path.is_dir():
            continue
        try:
            # a launch creates the directory and its lock first
            is_a_run = is_run(path) or holder_of(path) is not None
        except OSError:  # not readable by this user
            is_a_run = False
        if is_a_run:
            runs.append(read_run(path))
    return sorted(runs, key=lambda run: run.active_s)


def read_run(path: Path) -> Run:
    """Read one run. Never fails, whatever its files contain."""
    remarks: list[str] = []
    fields: dict[str, Any] = {}
    holder = holder_of(path)
    is_starting = holder is not None and not is_run(path)  # the lock is created first
    can_be_read = is_starting or _read_birth(path, fields, remarks)
    launches = _read_event_log(path, remarks)
    starts = [launch.start for launch in launches if launch.start]
    step, last_s, has_ended = None, None, False
    if launches:
        newest = launches[-1]
        step, last_s, has_ended = newest.last_step or newest.resumed_after, newest.ended_s, newest.has_ended
    saved, is_usable = _find_checkpoint(path, remarks)
    _read_best(path, fields, remarks)
    if not can_be_read or not is_usable:
        state = UNREADABLE
    elif holder is not None:
        state = RUNNING
    elif saved is not None:
        state = FINISHED if saved.finished else INTERRUPTED
    else:
        state = FINISHED if any(launch.has_ended for launch in launches) else FAILED
    if state == FAILED:
        remarks.append("ended before its first checkpoint; the same command starts over")
    if state == INTERRUPTED and has_ended and not remarks:
        remarks.append("finished, but its end could not be saved; it resumes from the previous checkpoint")
    first = fields.get("args", ())
    fields["args"] = tuple(map(str, starts[-1].get("args", first))) if starts else first
    if state == INTERRUPTED and fields["args"] != first:
        remarks.append(f"its first launch had other arguments; to resume it, add --run-dir {path} to its command")
    steps = [step for step in (step, None if saved is None else saved.step) if step is not None]
    times = [when for when in (last_s, None if saved is None else saved.time_s) if when is not None]
    active_s = max(times, default=_time_of_change(path))
    ran_s = sum(launch.ended_s - launch.times_s[0] for launch in launches if launch.start and launch.ended_s is not None)
    if holder is not None:
        ran_s += max(0.0, time.time() - (last_s or active_s))
        active_s = time.time()
    return Run(
        path=path,
        state=state,
        active_s=active_s,
        holder=holder,
        remarks=tuple(remarks),
        step=max(steps, default=None),
        checkpoint=saved,
        world_sizes=tuple(start.get("world_size") for start in starts),
        ran_s=ran_s if starts else None,
        **fields,
    )


def _read_birth(path: Path, fields: dict[str, Any], remarks: list[str]) -> bool:
    """Read ``birth.json`` into ``fields``; returns whether it could be read."""
    file = path / _BIRTH
    try:
        contents = read_fixed_settings(path)
        if contents is None:
            remarks.append(f"{file} is missing")
            return False
        birth, command = contents
        fields.update(script=str(command.script) or None, args=tuple(map(str, command.args)), shards=_whole(birth.shards))
    except ConfigError as error:
        remarks.append(str(error))
        return False
    except _BAD_FILE as error:
        remarks.append(f"cannot read {file}: {error or type(error).__name__}")
        return False
    return True


def _find_checkpoint(path: Path, remarks: list[str]) -> tuple[Saved | None, bool]:
    """The newest usable checkpoint, judged by manifests and file sizes; and False if there are some
    but none is usable."""
    store = Store(path)
    damaged = []
    try:
        newest = store.newest()
        for checkpoint in [newest, *(path for path in store.all() if path != newest)] if newest is not None else ():
            try:
                manifest = Manifest.read(checkpoint)
                for name in manifest.files:
                    verify_file(checkpoint, manifest, name, sizes_only=True)
            except CheckpointError as error:
                if checkpoint.exists():  # else an active run has just deleted it
                    damaged.append(str(error))
                if isinstance(error, NewerFormatError):
                    break  # it will not resume from an older one
                continue
            remarks += damaged
            return _saved(checkpoint, manifest), True
    except CheckpointError as error:
        damaged.append(str(error))
    except _BAD_FILE as error:
        damaged.append(f"cannot read {store.directory}: {error or type(error).__name__}")
    remarks += damaged
    return None, not damaged


def _saved(path: Path, manifest: Manifest) -> Saved:
    return Saved(
        name=path.name,
        step=int(manifest.step),
        epoch=int(manifest.epoch),
        time_s=float(manifest.time_s),
        num_bytes=manifest.num_bytes,
        finished=bool(manifest.finished),
    )


def _read_best(path: Path, fields: dict[str, Any], remarks: list[str]) -> None:
    directory = path / BEST
    try:
        if directory.is_dir():
            fields["best"] = _number(Manifest.read(directory).metric)
    except CheckpointError as error:
        if directory.is_dir():  # else it is just being replaced
            remarks.append(str(error))
    except _BAD_FILE as error:
        remarks.append(f"cannot read {directory}: {error or type(error).__name__}")


def _read_event_log(path: Path, remarks: list[str]) -> list[Launch]:
    try:
        return read_launches(path) if os.path.lexists(path / EVENT_LOG) else []
    except OSError as error:
        remarks.append(f"cannot read {path / EVENT_LOG}: {error}")
        return []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time_of_change(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
