"""What audits a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockstep.joining.instrument import Instrument, Run

if TYPE_CHECKING:
    from lockstep.listener import Listener


class Audit(Instrument):
    """In runs with the setting ``audit``."""

    def listeners(self, run: Run) -> Iterable[Listener]:
        """The auditor.

        Raises:
            ConfigError: a run with this strategy cannot be audited.
        """
        if run.config.audit == 0 or run.config.trace != "off":  # a trace records every shard itself
            return ()
        from lockstep.tools.audit.opening import open_audit  # with torch

        return (open_audit(run),)
