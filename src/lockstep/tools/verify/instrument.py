"""What traces a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from typing_extensions import override

from lockstep.base.errors import ConfigError
from lockstep.joining.instrument import Instrument, Run
from lockstep.tools.verify.options import TraceOptions

if TYPE_CHECKING:
    from lockstep.base.config import RunConfig
    from lockstep.listener import Listener


class Trace(Instrument):
    """In runs with the option ``trace``."""

    options: TraceOptions
    _interval: int | str
    """Between checkpoints, in a run that is not traced."""

    @override
    def settings(self, config: RunConfig) -> RunConfig:
        """A traced run saves no checkpoints.

        Raises:
            ConfigError: a run with this strategy cannot be traced.
        """
        self._interval = config.interval
        if self.options.trace == "off":
            return config
        if config.strategy == "fsdp":
            raise ConfigError(
                f"trace={self.options.trace!r} with strategy='fsdp': a trace compares whole tensors, and here every process "
                "has only a part of each. Trace the run with strategy='ddp' or 'exact', which has the same answer up to "
                "rounding."
            )
        return dataclasses.replace(config, checkpoint_every="off")

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """Those that write the trace."""
        if self.options.trace == "off":
            return ()
        from lockstep.tools.verify.diagnosis.tracing import open_trace  # slow

        return open_trace(run, self.options, self._interval)
