"""Adds audits to a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep._base.option import TRAINING, check_options, option
from lockstep._joining.instrument import Instrument, Run

if TYPE_CHECKING:
    from lockstep._listener import Listener


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of audits."""

    audit: int = option(0, group=TRAINING, least=0, metavar="STEPS")
    """Steps between audits, in which a second process recomputes one shard; the run stops if the
    results differ. [default: never]"""

    def __post_init__(self) -> None:
        check_options(self)


class Audit(Instrument):
    """An instrument that audits the user's runs with the option ``audit``."""

    options: AuditOptions

    def listeners(self, run: Run) -> Iterable[Listener]:
        """The auditor.

        Raises:
            ConfigError: a run with this strategy cannot be audited.
        """
        if self.options.audit == 0 or run.requests:
            return ()
        from lockstep._tools.audit.opening import open_audit  # with torch

        return (open_audit(run, self.options.audit),)
