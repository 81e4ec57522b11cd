"""The options of the digest journal."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep._base.option import TRAINING, check_options, option


@dataclass(frozen=True, kw_only=True)
class JournalOptions:
    """Settings of a run."""

    journal_every: int = option(1000, group=TRAINING, least=0, metavar="STEPS")
    """Steps between full entries of the digest journal, which lockstep diff and replay read; 0
    disables it. [default: 1000]"""

    def __post_init__(self) -> None:
        check_options(self)
