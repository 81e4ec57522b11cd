"""Says when checkpoints come much later than they were asked for, since the next is begun only when the last is written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_LATE = 2.0
"""Checkpoints are late if they are at least this multiple of the interval apart,"""
_LEAST_S = 2.0
"""and one takes at least so long,"""
_MOSTLY = 0.5
"""and at least this share of the time between two."""


class Lateness:
    """Follows the checkpoints of one launch. On rank 0, which alone knows when they are complete.

    Args:
        every: see ``RunConfig.interval``.
    """

    def __init__(self, every: int | str) -> None:
        self._every = every
        self._begun: tuple[int, float] | None = None
        self._wall_s = 0.0
        self._parts_s: Sequence[float] = ()
        self._has_warned = False

    def written(self, wall_s: float, parts_s: Sequence[float]) -> None:
        """A checkpoint is complete.

        Args:
            wall_s: how long that took, in seconds.
            parts_s: how long each rank took for its part.
        """
        self._wall_s, self._parts_s = wall_s, parts_s

    def begin(self, step: int, now_s: float, *, is_late: bool) -> str:
        """A checkpoint begins; returns a warning for the user, once, if they come late.

        Args:
            step: at which it is saved.
            is_late: whether it had to wait until the one before was written.
        """
        before, self._begun = self._begun, (step, now_s)
        if before is None or not is_late or self._has_warned or self._every == "off":
            return ""
        steps, seconds = step - before[0], now_s - before[1]
        if isinstance(self._every, int):
            times, apart = steps / self._every, f"{steps} steps, not every {self._every}"
        else:
            times, apart = seconds / float(self._every.removesuffix("s")), f"{seconds:.0f} s, not every {self._every}"
        if times < _LATE or self._wall_s < max(_LEAST_S, _MOSTLY * seconds):
            return ""
        self._has_warned = True
        return (
            f"a checkpoint takes {self._wall_s:.0f} s, and the next begins only when it is written: there is one every "
            f"{apart}.{self._slow_part()} Use a faster disk, or a longer --checkpoint-every."
        )

    def _slow_part(self) -> str:
        """Which rank writes its part for much longer than the others, as a sentence; empty: none does."""
        if len(self._parts_s) < 2:
            return ""
        rank = max(range(len(self._parts_s)), key=self._parts_s.__getitem__)
        typical_s = statistics.median(part_s for other, part_s in enumerate(self._parts_s) if other != rank)
        if self._parts_s[rank] < max(_LEAST_S, _LATE * typical_s):
            return ""
        return f" Rank {rank} writes its part for {self._parts_s[rank]:.0f} s, the others for {typical_s:.1f} s."
