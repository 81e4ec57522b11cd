"""``lockstep.join`` for type checkers and editors: with the settings of the engine, and the options of this package's tools.

Nothing imports this when a program runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

from lockstep.base.config import RunConfig
from lockstep.joining import join as joining
from lockstep.joining.team import Team
from lockstep.tools.audit.instrument import AuditOptions
from lockstep.tools.replay.options import JournalOptions
from lockstep.tools.verify.instrument import TraceOptions

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
