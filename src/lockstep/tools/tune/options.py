"""The options of runs whose loader was measured."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.base.option import TRAINING, option


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Settings of a run."""

    tuned: str | None = option(
        None,
        group=TRAINING,
        metavar="FILE",
        help="File of lockstep tune: apply its settings to the loader that it has measured; the answer stays the same.  "
        "[default: none]",
    )
