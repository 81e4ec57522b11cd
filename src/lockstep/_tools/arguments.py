"""``lockstep.join`` for type checkers and editors: with the settings of the engine, and the options
of this package's tools.

Nothing imports this when a program runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

from lockstep._base.config import RunConfig
from lockstep._joining import join as joining
from lockstep._joining.team import Team
from lockstep._tools.audit.instrument import AuditOptions
from lockstep._tools.replay.options import JournalOptions
from lockstep._tools.verify.instrument import TraceOptions

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Arguments(RunConfig, AuditOptions, JournalOptions, TraceOptions):
    """The arguments of ``join``."""

    rank: int | None = None
    world_size: int | None = None
    track: Any = None  # names, and objects


def _taking(arguments: Callable[P, object], function: Callable[..., Team]) -> Callable[P, Team]:
    return function


join = _taking(Arguments, joining.join)
