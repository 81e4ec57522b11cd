"""What traces a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from typing_extensions import override

from lockstep.joining.instrument import Instrument, Run

if TYPE_CHECKING:
    from lockstep.listener import Listener


class Trace(Instrument):
    """In runs with the setting ``trace``."""

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """Those that write the trace."""
        if run.config.trace == "off":
            return ()
        from lockstep.tools.verify.diagnosis.tracing import open_trace  # slow

        return open_trace(run)
