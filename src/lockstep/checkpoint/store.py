"""Where the checkpoints of a run lie, and how one comes to be among them.

::

    <run directory>/checkpoints/
        newest                      the name of the newest one, a line of text
        step-00000120/              one checkpoint: manifest.json, state.json, *.safetensors
        .writing-00000140-1f3a/     one that is being written, or was when the run was killed
        damaged-step-00000130/      one that a launch could not go on from
    <run directory>/best/           the weights that ``team.best`` keeps

A checkpoint is written beside the others under a name of its own, brought to the disk, checked, and renamed. So what
bears a checkpoint's name is whole, whenever the run was killed. (That it stays so, the checksums see to.)
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lockstep.atomic import UNFINISHED, flush, write_atomic
from lockstep.checkpoint.manifest import FILE_NAME as MANIFEST
from lockstep.checkpoint.manifest import Manifest, verify
from lockstep.errors import CheckpointError

_ALL = "checkpoints"
_NAME = re.compile(r"step-(\d+)")
_UNFINISHED = ".writing-"
_REMOVED = "-removed"
_OLD = "-old"
_NEWEST = "newest"
_DAMAGED = "damaged-"
BEST = "best"


class Store:
    """The checkpoints of one run.

    Args:
        run_dir: its directory. Nothing is made there before something is written.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.directory = run_dir / _ALL

    def all(self) -> list[Path]:
        """The checkpoints, the newest first. They may be damaged."""
        try:
            found = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        return sorted(found, key=_step, reverse=True)

    def has_unfinished(self) -> bool:
        """Whether a killed launch has left something that may be whole but for its name: see ``clean``."""
        return any(self.directory.glob(f"{_UNFINISHED}*"))

    def newest(self) -> Path | None:
        """The one of the latest step.

        (The pointer file is for people and other programs. It is one behind if the run was killed just before it was
        written, and what is whole shall not be lost for that.)
        """
        found = self.all()
        return found[0] if found else None

    def newest_sound(self, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest checkpoint that is undamaged; None if the run has none at all.

        Those that are not get another name: the run comes to their steps again. Only for who holds the run's lock.

        Args:
            say: called with a line about each one that is not.

        Raises:
            CheckpointError: there are some, and none can be used; or one is of a newer version.
        """
        damaged: list[tuple[Path, str]] = []
        for path in self.all():
            try:
                manifest = verify(path)
            except CheckpointError as error:
                if "newer lockstep" in str(error):
                    raise  # an older checkpoint can be read, but going on from it would undo what that version has done
                damaged.append((path, str(error)))
                continue
            for other, reason in damaged:
                kept = _set_aside(other)
                say(f"{reason}. Going back to the checkpoint before it, of step {manifest.step}{kept}.")
            return path, manifest
        if not damaged:
            return None
        raise CheckpointError(
            f"none of the {len(damaged)} checkpoints in {self.directory} can be used: "
            f"{'; '.join(reason for _, reason in damaged)}. To start anew (what is there is kept under another name): "
            "--fresh, or fresh=True."
        )

    def unfinished(self, step: int, token: str) -> Path:
        """Where a checkpoint is written before it is whole.

        Args:
            step: that it is of.
            token: of this launch: what an earlier one left must not get into it.
        """
        return self.directory / f"{_UNFINISHED}{step:08d}-{token}"

    def commit(self, unfinished: Path, manifest: Manifest, keep: int) -> Path:
        """Put a written checkpoint among the others, make it the newest, and remove the oldest. Returns where it is.

        Args:
            unfinished: where its other files are, all on the disk; each was read again by whoever wrote it.
            manifest: what it says of itself.
            keep: how many are to stay.

        Raises:
            OSError: it could not be written. The others are as they were.
            CheckpointError: a file is not there, or not in full length.
        """
        manifest.write(unfinished)
        flush(unfinished)
        verify(unfinished, sizes_only=True)
        path = self.directory / f"step-{manifest.step:08d}"
        self._put(unfinished, path)
        write_atomic(self.directory / _NEWEST, path.name + "\n", durable=True)
        flush(self.directory)
        others = [other for other in self.all() if other != path]
        # Those of later steps are left from before the run went back, because they were damaged: they go first.
        others.sort(key=lambda other: _step(other) > manifest.step)
        for old in others[keep - 1 :]:
            _remove(old)
        return path

    def mark_finished(self, step: int) -> None:
        """Note of the checkpoint of a step that the script came to its end with it."""
        path = self.directory / f"step-{step:08d}"
        replace(Manifest.read(path), finished=True).write(path)
        flush(path)

    def commit_best(self, unfinished: Path, manifest: Manifest) -> Path:
        """The same for the weights that are kept apart."""
        manifest.write(unfinished)
        flush(unfinished)
        verify(unfinished, sizes_only=True)
        path = self.run_dir / BEST
        self._put(unfinished, path)
        flush(self.run_dir)
        return path

    def clear_failed(self, unfinished: Path) -> None:
        """Make room: remove what failed tries have left beside the one that begins. Only where no rank writes another one."""
        for path in self.directory.glob(f"{_UNFINISHED}*"):
            if path != unfinished and not path.name.endswith(_OLD):
                shutil.rmtree(path, ignore_errors=True)

    def clean(self) -> None:
        """Clear up what a killed launch has left. Only for who holds the run's lock."""
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.glob(f"{_UNFINISHED}*")):  # a new one before the old one that it replaces
            if path.name.endswith(_REMOVED):
                _remove(path)
            else:
                self._rescue(path)
        for path in self.directory.glob(UNFINISHED):
            path.unlink(missing_ok=True)

    def _put(self, unfinished: Path, path: Path) -> None:
        if path.exists():
            # A step that was come to again: the run went back beyond it. A directory cannot be replaced in one go.
            old = unfinished.with_name(f"{unfinished.name}{_OLD}")
            os.replace(path, old)  # noqa: PTH105
            try:
                os.replace(unfinished, path)  # noqa: PTH105
            except OSError:
                os.replace(old, path)  # noqa: PTH105
                raise
            _remove(old)
        else:
            os.replace(unfinished, path)  # noqa: PTH105
        flush(path.parent)

    def _rescue(self, unfinished: Path) -> None:
        """One that is whole was killed just before its renaming; others go."""
        try:
            manifest = verify(unfinished)
        except CheckpointError:
            _remove(unfinished)
            return
        path = self.directory / f"step-{manifest.step:08d}" if manifest.kind == "checkpoint" else self.run_dir / BEST
        if path.exists():
            _remove(unfinished)
        else:
            os.replace(unfinished, path)  # noqa: PTH105


def find_checkpoint(path: Path) -> Path:
    """The directory of the checkpoint that a path means: itself, or the newest one of a run's directory.

    Raises:
        CheckpointError: there is none.
    """
    absolute = path.absolute()  # the name of "." is empty
    has_name = _NAME.fullmatch(absolute.name) is not None or absolute.name == BEST
    if (path / MANIFEST).exists() or (has_name and path.is_dir() and not (path / _ALL).is_dir()):
        return path  # also one that has lost its manifest
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


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _set_aside(path: Path) -> str:
    """Give a damaged checkpoint another name; returns what to say of that."""
    other = path.with_name(f"{_DAMAGED}{path.name}")
    try:
        _remove(other)  # damaged before, and written again since
        os.replace(path, other)  # noqa: PTH105
    except OSError:  # going on matters more
        return ""
    return f"; it is now called {other.name}"


def _remove(path: Path) -> None:
    # Its name goes first, so that half a checkpoint never bears one.
    doomed = path.with_name(f"{_UNFINISHED}{path.name}{_REMOVED}")
    with contextlib.suppress(OSError):
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(path, doomed)  # noqa: PTH105
    shutil.rmtree(doomed, ignore_errors=True)
