"""The checkpoints of a run on disk, and how they are committed.

::

    <run directory>/checkpoints/
        newest                      the name of the newest one, a line of text
        step-00000120/              one checkpoint: manifest.json, state.json, *.safetensors
        .writing-00000140-1f3a/     one that is being written, or was when the run was killed
        damaged-step-00000130/      one from which a launch could not resume
    <run directory>/best/           the weights kept by ``team.best``

A checkpoint is written under a temporary name beside the others, flushed to disk, and renamed. So
whatever has a checkpoint's name was complete when it was written, even if the run was killed;
checksums detect later damage."""

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
        run_dir: the run directory. Nothing is created there before a checkpoint is written.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.directory = run_dir / _ALL

    def all(self) -> list[Path]:
        """The checkpoints, newest first. They may be damaged.

        Raises:
            CheckpointError: something else is in the place of their directory.
        """
        try:
            paths = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise CheckpointError(f"{self.directory} cannot be read: it is not a directory") from error
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise CheckpointError(f"{self.directory} cannot be read: {os_error_text(error)}") from error
        return sorted(paths, key=step_of, reverse=True)

    def has_unfinished(self) -> bool:
        """Whether a killed launch has left a directory that may be complete except for its name:
        see ``clean``."""
        return any(self.directory.glob(f"{_UNFINISHED}*"))

    def newest(self) -> Path | None:
        """The checkpoint of the latest step; None: there is none.

        The file ``newest`` is for people and other programs, and may be one checkpoint behind after
        a kill."""
        return next(iter(self.all()), None)

    def newest_undamaged(self, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest undamaged checkpoint; None if the run has no checkpoints.

        Newer, damaged ones are renamed, since the run will reach their steps again. The caller must
        hold the run's lock.

        Args:
            say: called with a line about each damaged one.

        Raises:
            CheckpointError: there are checkpoints, but none is usable; or one was written by a
                newer version.
        """
        damaged: list[tuple[Path, str]] = []
        for path in self.all():
            try:
                manifest = verify(path)
            except NewerFormatError:
                # resuming from an older checkpoint would undo what the newer version has done
                raise
            except CheckpointError as error:
                damaged.append((path, str(error)))
                continue
            for damaged_path, reason in damaged:
                renamed = self._rename_damaged(damaged_path)
                say(f"{reason}. Going back to the checkpoint before it, of step {manifest.step}{renamed}.")
            return path, manifest
        if not damaged:
            return None
        raise CheckpointError(
            f"none of the {len(damaged)} checkpoints in {self.directory} can be used: "
            f"{'; '.join(reason for _, reason in damaged)}. To start over (what is there is kept under another name): "
            "--fresh, or fresh=True."
        )

    def unfinished(self, step: int, token: str) -> Path:
        """The directory in which a checkpoint is written before it is committed.

        Args:
            token: identifies this launch, to exclude files left by earlier ones.
        """
        return self.directory / f"{_UNFINISHED}{step:08d}-{token}"

    def commit(self, unfinished: Path, manifest: Manifest, keep: int) -> Path:
        """Commit a written checkpoint as the newest one, and delete the oldest ones. Returns its
        path.

        Args:
            unfinished: the directory with its other files, flushed to disk by their writers.
            keep: number of checkpoints to keep.

        Raises:
            OSError: it could not be written. Other checkpoints are unchanged.
            CheckpointError: a file is missing or incomplete.
        """
        path = self.directory / f"step-{manifest.step:08d}"
        self._put(unfinished, manifest, path)
        write_atomic(self.directory / _NEWEST, path.name + "\n", durable=True, within=self.run_dir)
        flush(self.directory)
        older = [checkpoint for checkpoint in self.all() if checkpoint != path]
        # Those of later steps remain from before the run went back to an undamaged one: they are
        # deleted first.
        older.sort(key=lambda checkpoint: step_of(checkpoint) > manifest.step)
        for checkpoint in older[keep - 1 :]:
            self._remove(checkpoint)
        return path

    def mark_finished(self, step: int) -> None:
        """Record in the checkpoint of a step that the script ended there."""
        path = self.directory / f"step-{step:08d}"
        replace(Manifest.read(path), finished=True).write(path, within=self.run_dir)
        flush(path)

    def commit_best(self, unfinished: Path, manifest: Manifest) -> Path:
        """Commit written best weights. Returns their path. Raises like ``commit``."""
        self._put(unfinished, manifest, self.run_dir / BEST)
        return self.run_dir / BEST

    def clear_failed(self, unfinished: Path) -> None:
        """Delete the leftovers of failed attempts, other than ``unfinished``. No rank may be
        writing another checkpoint."""
        for path in self.directory.glob(f"{_UNFINISHED}*"):
            if path != unfinished and not path.name.endswith(_OLD):
                remove(path, within=self.run_dir)

    def clean(self) -> None:
        """Clean up after a killed launch. The caller must hold the run's lock.

        Raises:
            OSError: the directory of the checkpoints is a symbolic link, or something else.
        """
        try:
            with directory(self.directory, within=self.run_dir):
                pass
        except FileNotFoundError:
            return
        # a new checkpoint before the old one that it replaces
        for path in sorted(self.directory.glob(f"{_UNFINISHED}*")):
            if path.name.endswith(_REMOVED):
                self._remove(path)
            else:
                self._rescue(path)
        for place in (self.run_dir, self.directory, *self.all()):
            for path in place.glob(UNFINISHED):
                remove(path, within=self.run_dir)

    def _put(self, unfinished: Path, manifest: Manifest, path: Path) -> None:
        """Complete a checkpoint by its manifest, verify that nothing is missing, and give it its
        name."""
        manifest.write(unfinished, within=self.run_dir)
        flush(unfinished)
        verify(unfinished, sizes_only=True)
        if os.path.lexists(path):
            # The run went back beyond this step and reached it again. A directory cannot be
            # replaced atomically.
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
        """Commit a complete checkpoint, whose launch was killed just before renaming it; delete
        others."""
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
        """Rename a damaged checkpoint; returns an addition to the message."""
        new_path = path.with_name(f"{DAMAGED}{path.name}")
        try:
            self._remove(new_path)  # left by an earlier damage of the same step
            rename(path, new_path, within=self.run_dir)
        except OSError:  # resuming matters more
            return ""
        return f"; it is now called {new_path.name}"

    def _remove(self, path: Path) -> None:
        # Renamed first, so that a partly deleted checkpoint is never found.
        doomed = path.with_name(f"{_UNFINISHED}{path.name}{_REMOVED}")
        with contextlib.suppress(OSError):
            remove(doomed, within=self.run_dir)
            rename(path, doomed, within=self.run_dir)
        remove(doomed, within=self.run_dir)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint directory for a path: the path itself, or the newest checkpoint of a run
    directory.

    Raises:
        CheckpointError: there is none.
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
        raise CheckpointError(f"{path}: no such file or directory")
    best = f" (its best weights are in {run_dir / BEST})" if (run_dir / BEST).is_dir() else ""
    raise CheckpointError(
        f"{path}: no checkpoint in it{best}. Give a checkpoint's directory, or a run's (lockstep runs DIR lists them)"
    )


def step_of(path: Path) -> int:
    """The step after which a checkpoint was saved, by its name."""
    return int(path.name.removeprefix("step-"))
