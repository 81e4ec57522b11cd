"""The options of what explains a run from inside."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockstep.base.errors import ConfigError
from lockstep.base.option import TRAINING, option


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Settings of a run."""

    profile: str | None = option(None, group=TRAINING, metavar="FIRST:LAST")
    """Write a torch.profiler trace of these steps to RUN/profile, for Perfetto or Chrome.  [default: none]"""

    def __post_init__(self) -> None:
        self.steps()

    def steps(self) -> tuple[int, int] | None:
        """The first and the last step to profile; None: none are.

        Raises:
            ConfigError: it is no pair of steps.
        """
        profile = self.profile
        if profile is None:
            return None
        match = re.fullmatch(r"(\d+):(\d+)", profile) if isinstance(profile, str) else None
        first, last = map(int, match.groups()) if match else (0, 0)
        if not 1 <= first <= last:
            raise ConfigError(
                f"profile={profile!r}: give the first and the last step to profile, as in 100:110 (steps count from 1)"
            )
        return first, last
