"""Writes a checkpoint while training continues: one thread per rank, coordinated through the file
system.

::

    rank 1 thread    write state-1.safetensors, fsync, write the note rank-1.json
    rank 0 thread    write its files, wait for all notes, build the manifest, commit
                     (see ``store.py`` for the order of writes in the commit)

A note is renamed into its place after the files that it lists are on disk. So a note that exists
means a complete part.

The threads call no collectives. A collective of this thread and one of the training loop could be
matched in different orders on different ranks, and then add or copy the wrong data. The file system
is shared by all ranks anyway, and a poll every 20 ms costs nothing compared with the write.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep._base.errors import CheckpointError
from lockstep._base.nofollow import make_directory, remove
from lockstep._base.regular_files import read_bytes
from lockstep._base.shapes import parse
from lockstep._state.checkpoint.files import write_json
from lockstep._state.checkpoint.manifest import File, Manifest
from lockstep._state.checkpoint.store import Store
from lockstep._state.checkpoint.tensorfile import write_tensors
from lockstep._world.devices import on_this_device

STATE = "state.json"
_LOOK_EVERY_S = 0.02
_NICE = 10
"""The niceness of the thread, which gives training priority if cores are scarce. (On Linux,
niceness is per thread.)"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank's part in writing one checkpoint."""

    manifest: Manifest
    """The manifest, complete except for ``files``."""
    token: str
    rank: int
    world_size: int
    keep: int
    """The number of checkpoints to keep."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """This rank's files, each with its tensors by name."""
    state: Any = None
    """The JSON value for ``state.json``, on rank 0."""
    copied: Sequence[torch.Event] = ()
    """The events after which the copies from GPUs are complete."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of a job on this rank."""

    manifest: Manifest
    wall_s: float
    path: Path | None = None
    """The path of the checkpoint, on rank 0, on success."""
    num_writers: int = 1
    """The number of ranks that wrote a part."""
    error: str = ""
    """The error that prevented this rank's part; empty: success."""


class Writer:
    """The writing thread of one rank, for one job at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.job: Job | None = None
        """The job in progress. Any thread may read it."""
        self.ended: list[Written] = []
        """The results of jobs since the last call of ``results``."""
        self._gives_up = self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job is in progress."""
        return self.job is not None

    @property
    def step(self) -> int | None:
        """The step of the job in progress; None: there is none. Any thread may read it."""
        job = self.job
        return None if job is None else job.manifest.step

    def submit(self, job: Job) -> None:
        """Starts a job. No other may be in progress: its copies are in the same memory."""
        with self._changed:
            assert self.job is None
            self.job, self._gives_up = job, False
            if self._thread is None:
                self._thread = threading.Thread(target=on_this_device(self._run), name="lockstep-checkpoint", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def results(self) -> list[Written]:
        """Returns the results of the jobs that finished since the last call."""
        with self._changed:
            results, self.ended = self.ended, []
            return results

    def give_up(self) -> None:
        """Stops waiting for the parts of other ranks, because one of them has failed."""
        with self._changed:
            self._gives_up = True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until no job is in progress. Returns False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.job is None, timeout_s)

    def close(self) -> None:
        """Ends the thread after the current job. No other may be submitted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.job is not None or self._is_closed)
                job = self.job
            if job is None:
                return
            result = self._write(job)
            with self._changed:
                self.ended.append(result)
                self.job = None
                self._changed.notify_all()
            del job  # its tensors would stay alive until the next job

    def _write(self, job: Job) -> Written:
        began = time.perf_counter()
        directory = self._store.unfinished(job.manifest.step, job.token)
        path, error = None, ""
        try:
            for event in job.copied:
                event.synchronize()
            if job.rank == 0:
                # Now, when no rank writes another checkpoint: all waited for the last one to end.
                self._store.clear_failed(directory)
            files = _write_part(directory, job, self._store.run_dir)
            if job.rank == 0:
                path = self._finish(directory, job, files)
        except Exception as problem:  # any: if this thread ended, all ranks would wait for it forever
            error = f"{type(problem).__name__}: {problem}"
            # Other ranks do not delete: rank 0 and its files may still be in that directory.
            if job.rank == 0:
                remove(directory, within=self._store.run_dir)  # frees space on a full disk
        wall_s = time.perf_counter() - began
        return Written(manifest=job.manifest, wall_s=wall_s, path=path, num_writers=job.world_size, error=error)

    def _finish(self, directory: Path, job: Job, files: dict[str, File]) -> Path:
        """Waits for the parts of the other ranks, and commits. On rank 0."""
        waiting = set(range(1, job.world_size))
        while waiting:
            for rank in sorted(waiting):
                note = _note(directory, rank)
                if note.exists():
                    files.update(parse(read_bytes(note)))
                    note.unlink()
                    waiting.discard(rank)
            with self._changed:
                if waiting and (self._gives_up or self._changed.wait_for(lambda: self._gives_up, _LOOK_EVERY_S)):
                    raise CheckpointError(f"rank {min(waiting)} could not write its part", code="checkpoint-part-missing")
        manifest = replace(job.manifest, files=dict(sorted(files.items())))
        if manifest.kind == "weights":
            return self._store.commit_best(directory, manifest)
        return self._store.commit(directory, manifest, job.keep)


def _write_part(directory: Path, job: Job, run_dir: Path) -> dict[str, File]:
    """Writes this rank's files, and flushes them. Returns their entries for the manifest."""
    make_directory(directory, within=run_dir)
    files: dict[str, File] = {}
    for name, tensors in job.tensors.items():
        size, digest = write_tensors(directory / name, tensors, within=run_dir)
        files[name] = {"bytes": size, "crc32": digest}
    if job.rank == 0:
        text = write_json(directory / STATE, job.state, within=run_dir)
        files[STATE] = {"bytes": len(text), "crc32": f"{zlib.crc32(text):08x}"}
    # Last, and by a rename: rank 0 reads a note as soon as it exists.
    if job.rank > 0:
        write_json(_note(directory, job.rank), files, within=run_dir)
    return files


def _note(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.json"
