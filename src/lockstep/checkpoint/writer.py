"""Writing a checkpoint while training goes on: one thread in each rank, which meets the others' in the file system.

Each rank writes its part into the unfinished directory, and then a note that says what it wrote. Rank 0 waits for all
notes, makes the manifest of them, and commits. The threads issue no collective: those of the training loop would be
matched with them in the wrong order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.checkpoint.files import write_json
from lockstep.checkpoint.manifest import Manifest
from lockstep.checkpoint.store import Store
from lockstep.checkpoint.tensorfile import write_tensors
from lockstep.errors import CheckpointError

STATE = "state.json"
_LOOK_EVERY_S = 0.02
_NICE = 10
"""Training goes first where cores are few. (On Linux a thread has a niceness of its own.)"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank's part in writing one checkpoint."""

    manifest: Manifest
    """All of it but ``files``."""
    token: str
    rank: int
    world_size: int
    keep: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    """This rank's files, each with its tensors by name."""
    state: Any = None
    """The JSON value that goes into ``state.json``; of rank 0."""
    copied: Any = None
    """An event after which the tensors hold what is to be written; None: they do."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """How a job ended on this rank."""

    manifest: Manifest
    wall_s: float
    path: Path | None = None
    """Where the checkpoint is; of rank 0, if it went well."""
    error: str = ""
    """Why it was not written; empty: this rank did its part."""


@dataclass
class _State:
    job: Job | None = None
    results: list[Written] = field(default_factory=list)
    give_up: bool = False
    closed: bool = False


class Writer:
    """The writing thread of one rank. It takes one job at a time.

    Args:
        store: of the run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state = _State()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way. Quick: it is asked for after every step."""
        return self._state.job is not None

    @property
    def has_results(self) -> bool:
        """Whether a job has ended since the last call of ``results``. Quick: it is asked for after every step."""
        return bool(self._state.results)

    def submit(self, job: Job) -> None:
        """Begin to write. There must be no job under way."""
        with self._changed:
            assert self._state.job is None
            self._state.job, self._state.give_up = job, False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lockstep-checkpoint", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def results(self) -> list[Written]:
        """How the jobs ended that have ended since the last call."""
        with self._changed:
            found, self._state.results = self._state.results, []
            return found

    def give_up(self) -> None:
        """Another rank could not write its part: do not wait for it."""
        with self._changed:
            self._state.give_up = True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no job is under way. False: the time was over before."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state.job is None, timeout_s)

    def close(self) -> None:
        """Let the thread end, after the job under way. No other may be submitted."""
        with self._changed:
            self._state.closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state.job is not None or self._state.closed)
                job = self._state.job
            if job is None:
                return
            result = self._write(job)
            with self._changed:
                self._state.results.append(result)
                self._state.job = None
                self._changed.notify_all()
            del job

    def _write(self, job: Job) -> Written:
        began = time.perf_counter()
        directory = self._store.unfinished(job.manifest.step, job.token)
        path, error = None, ""
        try:
            if job.copied is not None:
                job.copied.synchronize()
            if job.rank == 0:
                self._store.clear_failed(directory)
            files = _write_part(directory, job)
            if job.rank == 0:
                path = self._finish(directory, job, files)
        except Exception as problem:  # of any kind: were this thread to end, all ranks would wait for it
            error = f"{type(problem).__name__}: {problem}"
            if job.rank == 0 or job.world_size == 1:
                shutil.rmtree(directory, ignore_errors=True)  # a full disk needs the room
        return Written(manifest=job.manifest, wall_s=time.perf_counter() - began, path=path, error=error)

    def _finish(self, directory: Path, job: Job, files: dict[str, dict[str, Any]]) -> Path:
        """Rank 0: wait for the other parts, and commit."""
        waiting = set(range(1, job.world_size))
        while waiting:
            for rank in sorted(waiting):
                note = _note(directory, rank)
                if note.exists():
                    files.update(json.loads(note.read_text(encoding="utf-8")))
                    note.unlink()
                    waiting.discard(rank)
            with self._changed:
                if waiting and (self._state.give_up or self._changed.wait_for(lambda: self._state.give_up, _LOOK_EVERY_S)):
                    raise CheckpointError(f"rank {min(waiting)} could not write its part")
        manifest = replace(job.manifest, files=dict(sorted(files.items())))
        if manifest.kind == "weights":
            return self._store.commit_best(directory, manifest)
        return self._store.commit(directory, manifest, job.keep)


def _write_part(directory: Path, job: Job) -> dict[str, dict[str, Any]]:
    """Write this rank's files, bring them to the disk and read them again; returns what the manifest says of them."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, tensors in job.tensors.items():
        size, digest = write_tensors(directory / name, tensors)
        files[name] = {"bytes": size, "sha256": digest}
    if job.rank == 0:
        text = write_json(directory / STATE, job.state)
        files[STATE] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    if job.rank > 0:
        write_json(_note(directory, job.rank), files)
    return files


def _note(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.json"
