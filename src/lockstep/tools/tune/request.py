"""How ``lockstep tune`` and the processes of its one run of the script communicate: through files in a directory."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.base.atomic import write_atomic
from lockstep.base.config import RunConfig

_STAGE, _RESULT = "stage.json", "result.json"


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """What to measure."""

    directory: str
    """Of these files, and of the run."""
    window_s: float
    """Minimum time for which steps are timed in one window, in seconds."""

    def settings(self, config: RunConfig) -> RunConfig:
        """The script's settings for a temporary run, without optional features that take time."""
        return dataclasses.replace(
            config,
            run_dir=str(Path(self.directory) / "run"),
            balance="off",  # what is measured one after another must have the same shards
            progress="off",
            fresh=False,
            checkpoint_every="off",
            track="off",
        )


def say_stage(directory: Path, stage: str, left_s: float | None) -> None:
    """Tell the command what is being measured, and how long the rest may take."""
    write_atomic(directory / _STAGE, json.dumps((stage, left_s)))


def read_stage(directory: Path) -> tuple[str, float | None] | None:
    """The latest stage; None: none yet."""
    said = _read(directory / _STAGE)
    return None if said is None else (said[0], said[1])


def write_result(directory: Path, result: dict[str, Any]) -> None:
    """Save the result, with which the measurement ends."""
    write_atomic(directory / _RESULT, json.dumps(result))


def read_result(directory: Path) -> dict[str, Any] | None:
    """The result; None: none yet."""
    result: dict[str, Any] | None = _read(directory / _RESULT)
    return result


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
