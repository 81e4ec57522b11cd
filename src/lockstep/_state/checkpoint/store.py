"""The checkpoints of a run on disk, and how they are committed.

::

    <run directory>/checkpoints/
        newest                      the name of the newest checkpoint, a line of text
        step-00000120/              a checkpoint
            manifest.json           sizes and checksums of the other files, the position, settings
            state.json              all state but tensors
            model.safetensors       the weights; with fsdp, model.rank-<n>.safetensors
            state-<rank>.safetensors    the other tensors, shared out over the ranks
        .writing-00000140-1f3a/     a checkpoint that is being written (or was, before a kill)
        .writing-...-old, -removed  a checkpoint that is being replaced, or deleted
        damaged-step-00000130/      a checkpoint from which a launch could not resume
    <run directory>/best/           the weights kept by ``team.best``

The order of writes makes a commit atomic::

    every rank      write and fsync its files in .writing-<step>-<token>/
    rank 0          write and fsync manifest.json       (lists all files: needs all ranks' notes)
                    fsync .writing-.../                 (the names of the files are on disk)
                    rename .writing-... to step-<step>  (the commit)
                    fsync checkpoints/                  (the rename is on disk)
                    write newest, fsync checkpoints/ and the run directory
                    delete old checkpoints

A kill before the rename leaves a directory with a temporary name, which the next launch completes
or deletes. So a directory with a checkpoint's name was complete when it was written. Checksums
detect later damage.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lockstep._base.atomic import UNFINISHED, flush, write_atomic
from lockstep._base.errors import CheckpointError, os_error_text
from lockstep._base.nofollow import directory, remove, rename
from lockstep._state.checkpoint.manifest import FILE_NAME as MANIFEST
from lockstep._state.checkpoint.manifest import Manifest, NewerFormatError, verify

_ALL = "checkpoints"
_NAME = re.compile(r"step-(\d+)")
_UNFINISHED = ".writing-"
_REMOVED = "-removed"
_OLD = "-old"
_NEWEST = "newest"
DAMAGED = "damaged-"
BEST = "best"


class Store:
    """The checkpoints of one run.

    Args:
        run_dir: the run directory. The first checkpoint creates its subdirectory there.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.directory = run_dir / _ALL

    def all(self) -> list[Path]:
        """Returns the checkpoints, newest first. They may be damaged.

        Raises:
            CheckpointError: their directory is a file or a circle of links.
        """
        try:
            paths = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise CheckpointError(
                f"cannot read {self.directory}: it is not a directory", code="checkpoints-unreadable"
            ) from error
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise CheckpointError(
                f"cannot read {self.directory}: {os_error_text(error)}", code="checkpoints-unreadable"
            ) from error
        return sorted(paths, key=step_of, reverse=True)

    def has_unfinished(self) -> bool:
        """Returns whether a killed launch has left a directory that may be complete except for its
        name. ``clean`` commits or deletes it."""
        return any(self.directory.glob(f"{_UNFINISHED}*"))

    def newest(self) -> Path | None:
        """Returns the checkpoint of the latest step; None: there is none.

        The file ``newest`` is for people and other programs. After a kill it may be one checkpoint
        behind."""
        return next(iter(self.all()), None)

    def newest_undamaged(self, report: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """Returns the newest undamaged checkpoint; None: the run has no checkpoints.

        Newer, damaged checkpoints are renamed, since the run will reach their steps again. The
        caller must hold the run's lock.

        Args:
            report: called with a line about each damaged checkpoint.

        Raises:
            CheckpointError: all checkpoints are damaged, or a newer version wrote one of them.
        """
        damaged: list[tuple[Path, str]] = []
        for path in self.all():
            try:
                manifest = verify(path)
            except NewerFormatError:
                # It is not damaged: resuming from an older checkpoint would silently discard the
                # steps that the newer version has trained.
                raise
            except CheckpointError as error:
                damaged.append((path, str(error)))
                continue
            for damaged_path, reason in damaged:
                renamed = self._rename_damaged(damaged_path)
                report(f"{reason}. Resuming from the checkpoint of step {manifest.step}{renamed}.")
            return path, manifest
        if not damaged:
            return None
        raise CheckpointError(
            f"all {len(damaged)} checkpoints in {self.directory} are damaged: "
            f"{'; '.join(reason for _, reason in damaged)}. To start over, use --fresh or fresh=True (the old run is renamed, "
            "not deleted).",
            code="all-checkpoints-damaged",
        )

    def unfinished(self, step: int, token: str) -> Path:
        """Returns the directory in which a checkpoint is written before it is committed.

        Args:
            token: identifies this launch, to exclude files of earlier launches. The same on every
                rank, since all write into this directory.
        """
        return self.directory / f"{_UNFINISHED}{step:08d}-{token}"

    def commit(self, unfinished: Path, manifest: Manifest, keep: int) -> Path:
        """Commits a written checkpoint as the newest one, and deletes the oldest ones. Returns its
        path.

        Args:
            unfinished: the directory with the other files, flushed to disk by their writers.
            keep: the number of checkpoints to keep.

        Raises:
            OSError: the checkpoint could not be written. Other checkpoints are unchanged.
            CheckpointError: a file is missing or incomplete.
        """
        path = self.directory / f"step-{manifest.step:08d}"
        self._put(unfinished, manifest, path)
        write_atomic(self.directory / _NEWEST, path.name + "\n", durable=True, within=self.run_dir)
        flush(self.directory)
        flush(self.run_dir)  # the name of ``checkpoints/``, which the first one has created
        older = [checkpoint for checkpoint in self.all() if checkpoint != path]
        # Later steps are left over from before the run resumed from an older checkpoint. They are
        # deleted first: a launch that resumed from one of them would undo the new steps.
        older.sort(key=lambda checkpoint: step_of(checkpoint) > manifest.step)
        for checkpoint in older[keep - 1 :]:
            self._remove(checkpoint)
        return path

    def mark_finished(self, step: int) -> None:
        """Records in the checkpoint of a step that the script ended there."""
        path = self.directory / f"step-{step:08d}"
        replace(Manifest.read(path), finished=True).write(path, within=self.run_dir)
        flush(path)

    def commit_best(self, unfinished: Path, manifest: Manifest) -> Path:
        """Commits written best weights. Returns their path. Raises the errors of ``commit``."""
        self._put(unfinished, manifest, self.run_dir / BEST)
        return self.run_dir / BEST

    def clear_failed(self, unfinished: Path) -> None:
        """Deletes the files of failed attempts, other than ``unfinished``. No rank may be writing
        another checkpoint."""
        for path in self.directory.glob(f"{_UNFINISHED}*"):
            # A directory ``-old`` may be the only copy of a checkpoint that could not be renamed
            # back.
            if path != unfinished and not path.name.endswith(_OLD):
                remove(path, within=self.run_dir)

    def clean(self) -> None:
        """Cleans up after a killed launch. The caller must hold the run's lock.

        Raises:
            OSError: the directory of the checkpoints is a symbolic link or a file.
        """
        try:
            with directory(self.directory, within=self.run_dir):
                pass
        except FileNotFoundError:
            return
        # In the order of names, ``.writing-<x>`` comes before ``.writing-<x>-old``: the new
        # checkpoint gets the name, and the old one that it replaces is then deleted.
        for path in sorted(self.directory.glob(f"{_UNFINISHED}*")):
            if path.name.endswith(_REMOVED):
                self._remove(path)
            else:
                self._rescue(path)
        for place in (self.run_dir, self.directory, *self.all()):
            for path in place.glob(UNFINISHED):
                remove(path, within=self.run_dir)

    def _put(self, unfinished: Path, manifest: Manifest, path: Path) -> None:
        """Completes a checkpoint by its manifest, verifies that no file is missing, and renames
        it."""
        manifest.write(unfinished, within=self.run_dir)
        flush(unfinished)
        # Sizes alone: reading all content back would double the traffic of each checkpoint.
        verify(unfinished, sizes_only=True)
        if os.path.lexists(path):
            # The run resumed from before this step and reached it again. A directory cannot be
            # replaced atomically, so the old one is moved first. A kill between the two renames
            # leaves both under temporary names, and ``clean`` commits the new one.
            old = unfinished.with_name(f"{unfinished.name}{_OLD}")
            rename(path, old, within=self.run_dir)
            try:
                rename(unfinished, path, within=self.run_dir)
            except OSError:
                rename(old, path, within=self.run_dir)
                raise
            self._remove(old)
        else:
            rename(unfinished, path, within=self.run_dir)
        flush(path.parent)

    def _rescue(self, unfinished: Path) -> None:
        """Commits a complete checkpoint, whose launch was killed just before renaming it, and
        deletes others."""
        try:
            manifest = verify(unfinished)
        except CheckpointError:
            self._remove(unfinished)
            return
        path = self.directory / f"step-{manifest.step:08d}" if manifest.kind == "checkpoint" else self.run_dir / BEST
        if os.path.lexists(path):
            self._remove(unfinished)
        else:
            rename(unfinished, path, within=self.run_dir)

    def _rename_damaged(self, path: Path) -> str:
        """Renames a damaged checkpoint. Returns an addition to the message."""
        new_path = path.with_name(f"{DAMAGED}{path.name}")
        try:
            self._remove(new_path)  # from an earlier damage of the same step
            rename(path, new_path, within=self.run_dir)
        except OSError:  # resuming matters more than the name
            return ""
        return f"; the damaged one is now {new_path.name}"

    def _remove(self, path: Path) -> None:
        # Renamed first: a kill in the middle would leave a partly deleted directory with the name
        # of a checkpoint, and the next launch would report it as damaged.
        doomed = path.with_name(f"{_UNFINISHED}{path.name}{_REMOVED}")
        with contextlib.suppress(OSError):
            remove(doomed, within=self.run_dir)
            rename(path, doomed, within=self.run_dir)
        remove(doomed, within=self.run_dir)


def find_checkpoint(path: Path) -> Path:
    """Returns the checkpoint directory for a path: the path itself, or the newest checkpoint of a
    run directory.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    absolute = path.absolute()  # the name of "." is empty
    has_name = _NAME.fullmatch(absolute.name) is not None or absolute.name == BEST
    if (path / MANIFEST).exists() or (has_name and path.is_dir() and not (path / _ALL).is_dir()):
        return path  # even if its manifest is missing
    run_dir = absolute.parent if absolute.name == _ALL else path
    newest = Store(run_dir).newest()
    if newest is not None:
        return newest
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or directory", code="path-missing")
    best = f" (its best weights are in {run_dir / BEST})" if (run_dir / BEST).is_dir() else ""
    raise CheckpointError(
        f"{path} contains no checkpoint{best}. Pass the directory of a checkpoint or a run (`lockstep runs DIR` lists runs).",
        code="no-checkpoint",
    )


def step_of(path: Path) -> int:
    """Returns the step after which a checkpoint was saved, from its name."""
    return int(path.name.removeprefix("step-"))
