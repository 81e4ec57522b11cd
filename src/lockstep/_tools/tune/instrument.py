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
    """A request to time steps."""

    run_dir: str
    """The directory of the temporary run."""
    result: str
    """The file for the result, which ``timing.Timing`` writes."""
    seconds: float
    """The time for which steps are measured, in seconds."""


class Tuning(Instrument):
    """An instrument that times a run, if the command requests it with the fields of
    ``TimingRequest``."""

    def __init__(self, asked: Any = None) -> None:
        super().__init__(asked)
        self._request = None if asked is None else TimingRequest(**asked)

    @override
    def given(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turns off the other work in a run that is timed."""
        return settings if self._request is None else {**without_tools(settings), "journal_every": 0}

    @override
    def settings(self, config: RunConfig) -> RunConfig:
        """Makes a run that is timed temporary."""
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
        """Times the run's steps on rank 0: all ranks take them together."""
        if self._request is None or run.world.rank != 0:
            return ()
        from lockstep._tools.tune.timing import Timing  # with torch

        return (Timing(run.clock, self._request.seconds, Path(self._request.result)),)
