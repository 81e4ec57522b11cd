"""The directory of a replay: the run's birth, and links to one of its checkpoints. The run is only
read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockstep._base.errors import CheckpointError
from lockstep._base.regular_files import read_bytes
from lockstep._state.checkpoint.manifest import Manifest, verify
from lockstep._state.checkpoint.store import Store, step_of

_BIRTH = "birth.json"


def checkpoint_before(run_dir: Path, step: int, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
    """The newest intact checkpoint before a step; None: replay from the beginning of the run.

    Args:
        run_dir: of the run.
        step: the first step to show.
        say: called with a line about each damaged checkpoint.
    """
    for path in [path for path in Store(run_dir).all() if step_of(path) < step]:
        try:
            return path, verify(path)
        except CheckpointError as error:
            say(f"skipping a checkpoint: {error}")
    return None


def make_directory(directory: Path, run_dir: Path, checkpoint: Path | None) -> None:
    """Fill a new, empty directory; ``checkpoint`` None: without one."""
    (directory / _BIRTH).write_bytes(read_bytes(run_dir / _BIRTH))
    if checkpoint is not None:
        target = Store(directory).directory / checkpoint.name
        target.mkdir(parents=True)
        for file in checkpoint.resolve().iterdir():
            (target / file.name).symlink_to(file)
