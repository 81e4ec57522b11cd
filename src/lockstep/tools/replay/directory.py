"""The directory of a replay: the run's birth, and links to one of its checkpoints. The run is only read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockstep.base.errors import CheckpointError, ConfigError
from lockstep.state.checkpoint.manifest import Manifest, verify
from lockstep.state.checkpoint.store import Store, step_of

_NEAR = 1000
"""A step up to this one is replayed from the beginning without --from-start."""
_BIRTH = "birth.json"


def checkpoint_before(
    run_dir: Path, step: int, say: Callable[[str], None], *, from_start: bool = False
) -> tuple[Path, Manifest] | None:
    """The newest intact checkpoint before a step; None: replay from the beginning of the run.

    Args:
        run_dir: of the run.
        step: the first step to show.
        say: called with a line about each damaged checkpoint.
        from_start: ignore all checkpoints.

    Raises:
        ConfigError: there is none, and the beginning is far away.
    """
    checkpoints = Store(run_dir).all()
    for path in [path for path in checkpoints if step_of(path) < step] if not from_start else ():
        try:
            return path, verify(path)
        except CheckpointError as error:
            say(f"{error}: not used")
    if from_start or step <= _NEAR:
        return None
    later = sorted(step_of(path) for path in checkpoints if step_of(path) >= step)
    reached = "no step can be reached from a checkpoint"
    if later:
        reached = f"its checkpoints are of steps {', '.join(map(str, later))}, from which steps after {later[0]} can"
    raise ConfigError(
        f"step {step} of {run_dir} cannot be reached from a checkpoint: {reached}. --from-start takes all {step} steps again, "
        "from the beginning. (Of runs to come, --keep N keeps more of them.)"
    )


def make_directory(directory: Path, run_dir: Path, checkpoint: Path | None) -> None:
    """Fill a new, empty directory; ``checkpoint`` None: without one."""
    (directory / _BIRTH).write_bytes((run_dir / _BIRTH).read_bytes())
    if checkpoint is not None:
        target = Store(directory).directory / checkpoint.name
        target.mkdir(parents=True)
        for file in checkpoint.resolve().iterdir():
            (target / file.name).symlink_to(file)
