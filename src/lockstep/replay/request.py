"""What is asked of a replay: a file in its directory, which the processes read that take the steps again."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from lockstep.atomic import write_atomic
from lockstep.config import RunConfig

_FILE_NAME = "replay.json"
SHOWN = "shown"
"""Begins the names of the files in the trace's directory that hold what is shown: one a rank."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The steps that are taken again, and what is to be shown of them."""

    run: str
    """The run's directory."""
    after: int
    """The step of the checkpoint that it goes on from; 0: it begins at the beginning."""
    first: int
    """The first step to show."""
    last: int
    """The step after which it ends."""
    shard: int | None = None
    """The shard to show; None: all."""
    every: int = 0
    """Steps between lines of the run's digest journal; 0: it has none."""
    device: str = "auto"
    """The run's."""
    strategy: str = "auto"
    """What the run's command line gave."""
    out: str | None = None
    """The file for the batches."""
    debugs: bool = False
    """Whether to stop in the body of the loop over ``batch.shards``."""
    blames: bool = False
    """Whether to run that shard of the first step sample by sample."""

    @property
    def steps(self) -> range:
        """Those to show."""
        return range(self.first, self.last + 1)

    def write(self, directory: Path) -> None:
        """Save it in the replay's directory."""
        write_atomic(directory / _FILE_NAME, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @staticmethod
    def read(directory: Path) -> Request:
        """What ``write`` saved there."""
        return Request(**json.loads((directory / _FILE_NAME).read_text()))

    def settings(self, config: RunConfig, directory: str) -> RunConfig:
        """The script's settings for a replay, whatever it has asked for: in a directory of its own, without checkpoints, and
        not stopped by what is to be looked at."""
        return dataclasses.replace(
            config,
            run_dir=directory,
            journal_every=self.every,
            device=self.device,
            strategy=self.strategy if config.strategy == "auto" else config.strategy,
            progress="off",
            fresh=False,
            checkpoint_every="off",
            trace="off",
            trace_until=None,
            track="off",
            profile=None,
            on_nan="ignore",
            audit=0,
        )
