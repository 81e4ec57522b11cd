"""How ``lockstep tune`` and the processes of its one run of the script communicate: through files in a directory."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.base.atomic import write_atomic
from lockstep.base.config import RunConfig

_REQUEST, _STAGE, _RESULT = "tune.json", "stage.json", "result.json"


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """What to measure."""

    window_s: float
    """Minimum time for which steps are timed in one window, in seconds."""

    def write(self, directory: Path) -> None:
        """Save the request for the processes."""
        write_atomic(directory / _REQUEST, json.dumps(dataclasses.asdict(self)) + "\n")

    @staticmethod
    def read(directory: Path) -> TuningRequest:
        """The request that ``write`` has saved there."""
        return TuningRequest(**json.loads((directory / _REQUEST).read_text()))

    @staticmethod
    def settings(config: RunConfig, directory: Path) -> RunConfig:
        """The script's settings for a temporary run, without optional features that take time."""
        return dataclasses.replace(
            config,
            run_dir=str(directory / "run"),
            journal_every=0,
            audit=0,
            progress="off",
            fresh=False,
            checkpoint_every="off",
            trace="off",
            trace_until=None,
            track="off",
            profile=None,
            tuned=None,
        )


def say_stage(directory: Path, stage: str, left_s: float | None) -> None:
    """Tell the command what is being measured, and how long the rest may take."""
    write_atomic(directory / _STAGE, json.dumps({"stage": stage, "left_s": left_s}))


def read_stage(directory: Path) -> tuple[str, float | None] | None:
    """The latest stage; None: none yet."""
    try:
        said = json.loads((directory / _STAGE).read_text())
    except FileNotFoundError:
        return None
    return said["stage"], said["left_s"]


def write_result(directory: Path, result: dict[str, Any]) -> None:
    """Save the result, with which the measurement ends."""
    write_atomic(directory / _RESULT, json.dumps(result))


def read_result(directory: Path) -> dict[str, Any] | None:
    """The result; None: none yet."""
    try:
        result: dict[str, Any] = json.loads((directory / _RESULT).read_text())
    except FileNotFoundError:
        return None
    return result
