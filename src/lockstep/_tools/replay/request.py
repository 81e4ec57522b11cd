"""A request to replay steps, which the command passes to the replay's processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lockstep._base.config import RunConfig

SAMPLES = "samples"
"""The file in the trace's directory with the samples that were replayed one by one."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The steps to replay, and what to show of them."""

    run: str
    """The run's directory."""
    directory: str = ""
    """The replay's directory."""
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
    """The run's device."""
    strategy: str = "auto"
    """The strategy on the run's command line."""
    out: str | None = None
    """The file for the batches; None: they are not saved."""
    blamed_phase: int | None = None
    """The phase of the first step in which to run ``shard`` sample by sample; None: none."""

    @property
    def steps(self) -> range:
        """The steps to show."""
        return range(self.first, self.last + 1)

    def settings(self, config: RunConfig) -> RunConfig:
        """The settings for a replay: in its own directory, without checkpoints, and not stopped by
        what it is to show."""
        return dataclasses.replace(
            config,
            run_dir=self.directory,
            device=self.device,
            strategy=self.strategy if config.strategy == "auto" else config.strategy,
            progress="off",
            fresh=False,
            checkpoint_every="off",
            track="off",
            on_nan="ignore",
        )
