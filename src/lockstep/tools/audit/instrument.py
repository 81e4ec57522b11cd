"""What audits a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockstep.joining.instrument import Instrument, Run
from lockstep.tools.audit.options import AuditOptions

if TYPE_CHECKING:
    from lockstep.listener import Listener


class Audit(Instrument):
    """In runs of the user's own with the option ``audit``."""

    options: AuditOptions

    def listeners(self, run: Run) -> Iterable[Listener]:
        """The auditor.

        Raises:
            ConfigError: a run with this strategy cannot be audited.
        """
        if self.options.audit == 0 or run.asked:
            return ()
        from lockstep.tools.audit.opening import open_audit  # with torch

        return (open_audit(run, self.options.audit),)
