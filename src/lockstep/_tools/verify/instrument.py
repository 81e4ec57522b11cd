"""The instrument that traces a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from lockstep._base.errors import ConfigError
from lockstep._base.option import TRAINING, check_options, option
from lockstep._joining.instrument import Instrument, Run

if TYPE_CHECKING:
    from lockstep._base.config import RunConfig
    from lockstep._listener import Listener


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Settings of a run. ``gradient`` also records the first phase's gradient as numbers, without
    dropout and with BatchNorm in evaluation mode."""

    trace: str = option("off", group=TRAINING, choices=("off", "steps", "gradient"))
    """Write digests of every step to RUN/trace, for lockstep verify (slow). gradient also records
    what is compared with a single device. [default: off]"""
    trace_until: int | None = option(None, group=TRAINING, least=1, metavar="STEP")
    """With --trace: stop the script after this step. [default: run to the end]"""

    def __post_init__(self) -> None:
        check_options(self)
        if self.trace_until is not None and self.trace == "off":
            raise ConfigError(
                f"trace_until={self.trace_until} has no effect without a trace. Set trace= as well.",
                code="trace-until-without-trace",
            )


class Trace(Instrument):
    """The instrument of runs with the option ``trace``."""

    options: TraceOptions
    _interval: int | str
    """The interval between checkpoints that the run has without a trace."""

    @override
    def settings(self, config: RunConfig) -> RunConfig:
        """A traced run saves no checkpoints."""
        self._interval = config.interval
        if self.options.trace == "off":
            return config
        return dataclasses.replace(config, checkpoint_every="off")

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """The listeners that write the trace."""
        if self.options.trace == "off":
            return ()
        from lockstep._tools.verify.diagnosis.tracing import open_trace  # slow

        return open_trace(run, self.options.trace, self.options.trace_until, self._interval)
