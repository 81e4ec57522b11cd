"""When a checkpoint is saved: at the same step on every rank, whatever their clocks say.

A number of steps needs no talking. A time does, and so does a rank whose disk is full and wants to try again, or one that was
asked to stop (see ``lockstep.stopping``): so now and then, about twice a second, the ranks exchange a few numbers. Each
exchange also settles at which step the next one is. While a checkpoint waits for the one before it to be written, it is the
next step; and if others fall due meanwhile, it stands for them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_EXCHANGE_EVERY_S = 0.5
_MOST_STEPS = 64
"""Between two exchanges: steps that were quick may become slow."""
_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0

Exchange = Callable[[list[int]], list[int]]
"""The largest of each number over all ranks. A collective, if there are several."""


class Pace:
    """Says after which steps a checkpoint is saved.

    Args:
        every: steps, or seconds with ``s`` behind them, or ``off`` (never), as in ``RunConfig.checkpoint_every``.
        exchange: see above.
        is_alone: one process: it may look at its clock after every step.
        clock: seconds.
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
        self._retry_at: float | None = None
        self._retry_s = _FIRST_RETRY_S
        self._failed = False
        self.asked = 0
        """By the last exchange, the largest of what the ranks gave for ``asked``. The same on every rank."""

    def tick(self, step: int, *, is_busy: bool, asked: int = 0) -> tuple[bool, bool]:
        """After every step, on every rank.

        Args:
            step: that has ended.
            is_busy: whether this rank still writes the last checkpoint.
            asked: more than 0 if this rank was asked to stop: then the next checkpoint is saved at once, whatever the interval.

        Returns:
            Whether to save now, and whether some rank could not write the last one: the same on every rank.
        """
        if self._every_steps is not None and step % self._every_steps == 0:
            self._due = True
        elif step < self._next_exchange and not self._is_alone:
            return False, False
        now = self._clock()
        wants = self._retry_at is not None and now >= self._retry_at
        wants = wants or self._due or (self._every_s is not None and now - self._saved_at >= self._every_s)
        if self._is_alone and not wants and not self._failed and not asked:
            return False, False
        numbers = [wants, is_busy, self._failed, self._steps_ahead(step, now), asked]
        due, busy, failed, num_steps, self.asked = self._exchange(numbers)
        self._failed = False
        self._due = bool(due)
        # One that is due while the last one is written is saved at the first step after which no rank writes any more.
        self._next_exchange = step + (1 if due and busy else num_steps)
        return self.asked > 0 or (self._due and not busy), bool(failed)

    def ask(self, asked: int) -> bool:
        """Where no step has ended: whether some rank was asked to stop. Every rank must call it."""
        (self.asked,) = self._exchange([asked])
        return self.asked > 0

    def begin_save(self) -> None:
        """A checkpoint is about to be saved."""
        self._due = False
        self._saved_at = self._clock()
        self._retry_at = None

    def written(self, *, well: bool) -> None:
        """This rank has written its part of the last one, or could not: then it will want to try again after a while."""
        if well:
            self._retry_s = _FIRST_RETRY_S
        else:
            self._failed = True
            self._retry_at = self._clock() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    def told(self) -> None:
        """All ranks know how the last one ended, by other means than an exchange."""
        self._failed = False

    @property
    def retry_s(self) -> float:
        """Seconds until the next try, after one that failed."""
        return 0.0 if self._retry_at is None else max(0.0, self._retry_at - self._clock())

    def _steps_ahead(self, step: int, now: float) -> int:
        """How many steps until the next exchange."""
        before, self._last_exchange = self._last_exchange, (step, now)
        if before is None or step <= before[0]:
            return 1
        step_s = (now - before[1]) / (step - before[0])
        return max(1, min(_MOST_STEPS, int(_EXCHANGE_EVERY_S / max(step_s, 1e-9))))
