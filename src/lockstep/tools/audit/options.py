"""The options of audits."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.base.option import TRAINING, check_options, option


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Settings of a run."""

    audit: int = option(
        0,
        group=TRAINING,
        least=0,
        metavar="STEPS",
        help="Steps between audits, in which a second process computes a shard, too; the run ends if the results differ.  "
        "[default: never]",
    )

    def __post_init__(self) -> None:
        check_options(self)
