"""The options of traces."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.base.errors import ConfigError
from lockstep.base.option import TRAINING, check_options, option


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Settings of a run. ``gradient`` also records the first phase's gradient as numbers, without dropout and with BatchNorm in
    evaluation mode; ``calls`` the calls of the script's code that could make runs differ."""

    trace: str = option(
        "off",
        group=TRAINING,
        choices=("off", "steps", "gradient", "calls"),
        help="Write digests of every step to RUN/trace, for lockstep verify; slow. gradient and calls record more, to "
        "find causes.  [default: off]",
    )
    trace_until: int | None = option(
        None,
        group=TRAINING,
        least=1,
        metavar="STEP",
        help="With --trace: end the script after this step.  [default: run to its end]",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.trace_until is not None and self.trace == "off":
            raise ConfigError(f"trace_until={self.trace_until} has no effect without a trace: give trace= as well")
