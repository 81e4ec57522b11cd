"""Decides when to save a checkpoint: at the same step on every rank, although clocks differ.

::

    rank 0    rank 1    rank 2
    its clock, a signal received, a writer that is busy or has failed
       |         |         |
       +-- maximum of 5 numbers, at a step known to all (_loop/between.py)
       |         |         |
    the same decision on every rank: save now? / next exchange at step n

With an interval in steps, all ranks know at which steps a checkpoint is due. They do not know
whether it may be saved: another rank may still be writing the last one, may have failed to, or may
have received a signal (see ``_base/stopping.py``). An interval in seconds depends on each clock. So
the ranks exchange a few numbers about twice a second, and when a checkpoint is due.

An exchange on every step would cost a collective per step, which small models would notice. So each
exchange also determines the step of the next one. While a checkpoint waits for an earlier one to be
written, that is the very next step. Checkpoints that are due in the meantime are merged into it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

_EXCHANGE_EVERY_S = 0.5
_MOST_STEPS, _MOST_STEPS_ALONE = 64, 8
"""The largest number of steps between exchanges, of several ranks and of one. Steps may become slow
after the last estimate, and a signal must be noticed in the grace period of a cluster (often 30 s).
A single process sends nothing, and only reads its clock then."""


class CheckpointSchedule:
    """The schedule by which checkpoints are saved.

    Args:
        every: a number of steps, or of seconds followed by ``s``, or ``off`` (never), as in
            ``RunConfig.interval``.
        is_alone: whether there is only one process.
        clock: returns the time in seconds.
    """

    def __init__(self, every: int | str, *, is_alone: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_steps = every if isinstance(every, int) else None
        self.is_off = every == "off"
        self._every_s = None if isinstance(every, int) or self.is_off else float(every.removesuffix("s"))
        self._most_steps = _MOST_STEPS_ALONE if is_alone else _MOST_STEPS
        self._clock = clock
        self._due = False
        self._next_exchange = 0
        self._last_exchange: tuple[int, float] | None = None
        self._saved_at = clock()
        self._failed = False
        self.stop_request = 0
        """The largest ``stop_request`` of the ranks in the last exchange. The same on every
        rank."""

    def is_due(self, step: int) -> bool:
        """Whether the ranks exchange their numbers after this step. The same on every rank."""
        return step >= self._next_exchange or (self._every_steps is not None and step % self._every_steps == 0)

    def propose(self, step: int, *, is_busy: bool, stop_request: int = 0) -> list[int]:
        """Returns the numbers of this rank, of which ``settle`` takes the maximum.

        Args:
            is_busy: whether this rank is still writing the last checkpoint.
            stop_request: greater than 0 if this rank was asked to stop. A checkpoint is then saved
                at any interval.
        """
        now = self._clock()
        if self._every_steps is not None and step % self._every_steps == 0:
            self._due = True
        wants = self._due or (self._every_s is not None and now - self._saved_at >= self._every_s)
        return [wants, is_busy, self._failed, self._steps_ahead(step, now), stop_request]

    def settle(self, step: int, largest: Sequence[int]) -> tuple[bool, bool]:
        """Decides after a step.

        Args:
            largest: the maximum over all ranks of each number that they have proposed: "any rank"
                for the flags, and for the steps ahead the estimate of the fastest rank. (All ranks
                step together, so their estimates are close.)

        Returns:
            Whether to save now, and whether any rank failed to write the last checkpoint. Both are
            the same on every rank.
        """
        due, busy, failed, num_steps, self.stop_request = largest
        self._failed = False
        self._due = bool(due)
        # A checkpoint that is due while the last one is being written is saved after the first step
        # at which all ranks have finished: the writer still reads the copies of the last one.
        self._next_exchange = step + (1 if due and busy else num_steps)
        # A stop does not wait for the writer: the caller waits for it before it saves.
        return self.stop_request > 0 or (self._due and not busy), bool(failed)

    def begin_save(self) -> None:
        """Records that a checkpoint is about to be saved."""
        self._due = False
        self._saved_at = self._clock()

    def written(self, *, well: bool) -> None:
        """Records whether this rank has written its part of the last checkpoint."""
        self._failed = self._failed or not well

    def acknowledge(self) -> None:
        """Records that all ranks know the outcome of the last checkpoint without another
        exchange."""
        self._failed = False

    @property
    def has_failed(self) -> bool:
        """Whether writing has failed here since the last exchange."""
        return self._failed

    def _steps_ahead(self, step: int, now: float) -> int:
        """Returns the number of steps until the next exchange."""
        before, self._last_exchange = self._last_exchange, (step, now)
        if before is None or step <= before[0]:
            return 1  # no estimate of a step's time yet
        step_s = (now - before[1]) / (step - before[0])
        return max(1, min(self._most_steps, int(_EXCHANGE_EVERY_S / max(step_s, 1e-9))))
