"""What times the steps of a run for ``lockstep tune``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lockstep._base.config import without_tools
from lockstep._joining.instrument import Instrument, Run

if TYPE_CHECKING:
    from lockstep._base.config import RunConfig
    from lockstep._listener import Listener


@dataclass(frozen=True, kw_only=True)
class TimingRequest:
    """What to time."""

    run_dir: str
    """Of the temporary run."""
    result: str
    """The file to write it to: see ``timing.Timing``."""
    seconds: float
    """Time for which steps are timed."""


class Tuning(Instrument):
    """Asked for a ``TimingRequest``, by field."""

    def __init__(self, asked: Any = None) -> None:
        super().__init__(asked)
        self._request = None if asked is None else TimingRequest(**asked)

    @override
    def given(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """A run that is timed has nothing beside it that takes time."""
        return settings if self._request is None else {**without_tools(settings), "journal_every": 0}

    @override
    def settings(self, config: RunConfig) -> RunConfig:
        """A run that is timed is thrown away."""
        if self._request is None:
            return config
        return dataclasses.replace(
            config,
            run_dir=self._request.run_dir,
            progress="off",
            fresh=False,
            checkpoint_every="off",
            track="off",
            balance="off",
        )

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """What times its steps: on rank 0, as all ranks take them together."""
        if self._request is None or run.world.rank != 0:
            return ()
        from lockstep._tools.tune.timing import Timing  # with torch

        return (Timing(run.clock, self._request.seconds, Path(self._request.result)),)
