"""The outcome of a stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["passed", "rehearsed", "failed", "hung", "unusable", "not run"]
"""``unusable``: a machine on which no stage can run."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one stage, or of the look at the machine before them."""

    number: int
    """From 1; 0: the machine."""
    name: str
    verdict: Verdict
    why: str = ""
    """Of what has not passed, in a line."""
    seconds: float = 0.0
    limit_s: float = 0.0
    command: tuple[str, ...] = ()
    status: int | None = None
    found: dict[str, Any] = field(default_factory=dict)
    """What its check has written down."""
    output: str = ""
    """The end of what it has printed."""
    left_behind: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        return self.verdict in ("failed", "hung", "unusable")
