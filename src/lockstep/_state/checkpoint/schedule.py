"""Deciding when to save a checkpoint: at the same step on every rank, whatever their clocks say.

All ranks know at which steps one falls due by an interval in steps. They do not if the interval is
in time, or if one of them still writes the last checkpoint, has failed to, or was asked to stop
(see ``lockstep._base.stopping``): so about twice a second, and when one falls due, they exchange a
few numbers.
Each exchange also determines the step of the next one: the very next step while a checkpoint waits
for an earlier one to be written. Checkpoints that fall due meanwhile are merged into it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_EXCHANGE_EVERY_S = 0.5
_MOST_STEPS = 64
"""The largest number of steps between exchanges: fast steps may become slow."""

Exchange = Callable[[list[int]], list[int]]
"""Returns the maximum of each number over all ranks. A collective if there are several."""


class CheckpointSchedule:
    """Decides after which steps a checkpoint is saved.

    Args:
        every: a number of steps, or of seconds followed by ``s``, or ``off`` (never), as in
            ``RunConfig.interval``.
        exchange: see above.
        is_alone: whether there is only one process, which may read its clock after every step.
        clock: returns the time in seconds.
    """

    def __init__(
        self, every: int | str, exchange: Exchange, *, is_alone: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_steps = every if isinstance(every, int) else None
        self.is_off = every == "off"
        self._every_s = None if isinstance(every, int) or self.is_off else float(every.removesuffix("s"))
        self._exchange = exchange
        self._is_alone = is_alone
        self._clock = clock
        self._due = False
        self._next_exchange = 0
        self._last_exchange: tuple[int, float] | None = None
        self._saved_at = clock()
        self._failed = False
        self.stop_request = 0
        """The largest ``stop_request`` of the ranks in the last exchange. The same on every
        rank."""

    def tick(self, step: int, *, is_busy: bool, stop_request: int = 0) -> tuple[bool, bool]:
        """Decide after a step. Every rank must call it.

        Args:
            is_busy: whether this rank is still writing the last checkpoint.
            stop_request: greater than 0 if this rank was asked to stop: then a checkpoint is saved
                whatever the interval.

        Returns:
            Whether to save now, and whether any rank failed to write the last one: the same on
            every rank.
        """
        if self._every_steps is not None and step % self._every_steps == 0:
            self._due = True
        elif step < self._next_exchange and not self._is_alone:
            return False, False
        now = self._clock()
        wants = self._due or (self._every_s is not None and now - self._saved_at >= self._every_s)
        if self._is_alone and not wants and not self._failed and not stop_request:
            return False, False
        numbers = [wants, is_busy, self._failed, self._steps_ahead(step, now), stop_request]
        due, busy, failed, num_steps, self.stop_request = self._exchange(numbers)
        self._failed = False
        self._due = bool(due)
        # One that falls due while the last one is being written is saved after the first step at
        # which all have finished.
        self._next_exchange = step + (1 if due and busy else num_steps)
        return self.stop_request > 0 or (self._due and not busy), bool(failed)

    def exchange_stop(self, stop_request: int) -> bool:
        """Whether any rank was asked to stop. Every rank must call it, between steps."""
        (self.stop_request,) = self._exchange([stop_request])
        return self.stop_request > 0

    def begin_save(self) -> None:
        """Record that a checkpoint is about to be saved."""
        self._due = False
        self._saved_at = self._clock()

    def written(self, *, well: bool) -> None:
        """Record whether this rank has written its part of the last checkpoint."""
        self._failed = self._failed or not well

    def acknowledge(self) -> None:
        """Record that all ranks know the outcome of the last checkpoint without another
        exchange."""
        self._failed = False

    @property
    def has_failed(self) -> bool:
        """Whether writing has failed here since the last exchange."""
        return self._failed

    def _steps_ahead(self, step: int, now: float) -> int:
        """Number of steps until the next exchange."""
        before, self._last_exchange = self._last_exchange, (step, now)
        if before is None or step <= before[0]:
            return 1
        step_s = (now - before[1]) / (step - before[0])
        return max(1, min(_MOST_STEPS, int(_EXCHANGE_EVERY_S / max(step_s, 1e-9))))
