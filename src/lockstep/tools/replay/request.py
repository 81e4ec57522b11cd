"""What to replay: a file in the replay's directory, read by its processes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from lockstep.base.atomic import write_atomic
from lockstep.base.config import RunConfig
from lockstep.base.regular import read_bytes
from lockstep.base.shapes import check, parse

_FILE_NAME = "replay.json"
SAMPLES = "samples"
"""The file in the trace's directory with the samples that were replayed one by one."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The steps to replay, and what to show of them."""

    run: str
    """The run's directory."""
    after: int
    """The step of the checkpoint to resume from; 0: start from the beginning."""
    first: int
    """The first step to show."""
    last: int
    """The last step to show, after which the replay ends."""
    shard: int | None = None
    """The shard to show; None: all."""
    every: int = 0
    """The run's ``journal_every``; 0: it has no digest journal."""
    device: str = "auto"
    """Of the run."""
    strategy: str = "auto"
    """As given on the run's command line."""
    out: str | None = None
    """The file for the batches; None: they are not saved."""
    debugs: bool = False
    """Whether to stop in the body of the loop over ``batch.shards``."""
    blames: bool = False
    """Whether to run ``shard`` of the first step sample by sample."""

    @property
    def steps(self) -> range:
        """The steps to show."""
        return range(self.first, self.last + 1)

    def write(self, directory: Path) -> None:
        """Save the request in the replay's directory."""
        write_atomic(directory / _FILE_NAME, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @staticmethod
    def read(directory: Path) -> Request:
        """The request that ``write`` has saved there."""
        return check(Request(**parse(read_bytes(directory / _FILE_NAME))))

    def settings(self, config: RunConfig, directory: str) -> RunConfig:
        """The settings for a replay: in its own directory, without checkpoints, and not stopped by what it is to show."""
        return dataclasses.replace(
            config,
            run_dir=directory,
            device=self.device,
            strategy=self.strategy if config.strategy == "auto" else config.strategy,
            progress="off",
            fresh=False,
            checkpoint_every="off",
            track="off",
            on_nan="ignore",
        )
