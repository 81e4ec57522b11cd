"""The position of this process in the run: epoch, pass over a loader, and step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from lockstep.base.errors import ConfigError, DataError
from lockstep.base.stopping import say
from lockstep.data.loader import PreparedLoader
from lockstep.data.streams import Purpose, reseed
from lockstep.listener import Listeners
from lockstep.loop.phases import Phases
from lockstep.plan.length import length_of
from lockstep.plan.shards import StepPlan
from lockstep.state.recovery.journey import Journey


class Loop:
    """Holds and advances the position of this process in the run. Implements Driver for the prepared loaders.

    Args:
        phases: runs the phases of each step.
        journey: tracks this launch's way through the script, replayed parts included.
        listeners: notified of passes and steps.
    """

    def __init__(self, phases: Phases, journey: Journey, listeners: Listeners) -> None:
        self.phases = phases
        self.epoch = 0
        self.num_epochs: int | None = None
        self._journey = journey
        self._listeners = listeners
        self._leader: PreparedLoader | None = None
        """The loader whose pass counts the steps."""
        self._num_in_pass = 0
        self._num_passes = 0
        self._beside: dict[PreparedLoader, int] = {}
        """Open passes beside the leading one, with the number of the leading pass in which each last yielded a batch. Between
        two leading passes it is unknown whether the script will continue or restart them, so no checkpoint is saved there."""
        self._owes_tick = False
        """Whether the last step's ``tick`` is still due, because the loop was left within that step."""
        self._error_before = getattr(sys, "last_value", None)

    @property
    def step(self) -> int:
        """Number of the current step; between steps, that of the last one."""
        return self.phases.step

    @property
    def is_replaying(self) -> bool:
        """Whether the code now running had run before the interruption, so that it is not recorded again."""
        return self._journey.is_replaying

    # Epochs

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """See ``Team.epochs``."""
        if num_epochs < 0:
            raise ConfigError(f"epochs({num_epochs}): it must be 0 or more")
        first = self._journey.enter_epochs(num_epochs)
        self._catch_up()
        completed = False
        try:
            for epoch in range(first, num_epochs):
                self._begin_epoch(epoch, num_epochs)
                yield epoch
                self.report()
                self._journey.end_epoch(epoch, self.step, is_in_pass=self._leader is not None or bool(self._beside))
            completed = True
        finally:
            self._leave_epochs(max(first, num_epochs) if completed else None)

    def _begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Begin an epoch with a random stream of its own, so that a replayed epoch draws the same numbers."""
        self.num_epochs = num_epochs
        self.epoch = epoch
        self._journey.begin_epoch(epoch)
        self._catch_up()
        self._reseed_between(epoch)

    def _leave_epochs(self, num_epochs: int | None) -> None:
        """Leave the loop over epochs, after ``num_epochs``; None: left early."""
        self._journey.leave_epochs(num_epochs, self.step)
        self._catch_up()
        self._reseed_between(0)  # a launch that resumes behind the loop has not drawn the numbers drawn inside it

    def _reseed_between(self, epoch: int) -> None:
        if self._leader is None:
            reseed(self.phases.seed, Purpose.EPOCH, self._journey.section, epoch)

    def _reseed_after_pass(self) -> None:
        """Begin the random stream of the code after a pass. It belongs to the pass, not to its last step, which a launch that
        skips the pass does not know: the numbers drawn there may decide what later passes learn."""
        reseed(self.phases.seed, Purpose.TAIL, *self._journey.newest_pass)

    def _catch_up(self) -> None:
        """Take over the step number once the journey has reached the point of resumption."""
        if self._journey.step_reached is not None:
            self.phases.step, self._journey.step_reached = self._journey.step_reached, None

    # Passes

    def skips(self) -> bool:
        """See Driver."""
        if self._leader is not None or not self._journey.skips():
            return False
        self._catch_up()
        self._reseed_after_pass()
        return True

    def enter(self, loader: Any) -> bool:
        """See Driver."""
        if self._leader is loader:  # the script has dropped its earlier iterator unfinished
            self.leave(loader, exhausted=False, failed=False)
        if self._leader is not None:
            return False
        self.report()
        self._journey.begin_pass()
        self._catch_up()
        self._leader = loader
        self._num_passes += 1
        self._num_in_pass = done = loader.num_skipped
        length = length_of(loader)
        self._listeners.begin_pass(self.epoch, self.num_epochs, length, done)
        return True

    def leave(self, loader: object, *, exhausted: bool, failed: bool) -> None:
        """See Driver."""
        if self._leader is not loader:
            return
        failed = failed or self.script_failed()
        if self.phases.in_step and self.phases.leave_step(failed=failed):
            self._num_in_pass += 1
            # `break`, or an error that ends the script: indistinguishable here, and after an error no rank may be waited for.
            self._owes_tick = True
        self._leader = None
        if failed:
            return
        self._reseed_after_pass()
        if exhausted:  # then every rank is here
            self._listeners.flush()
        self._listeners.end_pass(self.step, exhausted=exhausted)
        for stale in [beside for beside, newest in self._beside.items() if newest < self._num_passes]:
            stale.abandon()
            del self._beside[stale]
        self._journey.end_pass(self.step, exhausted=exhausted and not self._beside)
        if exhausted and self._num_in_pass == 0:
            raise DataError(
                "a pass over a prepared loader had no global batch, so nothing was learned: the data set is empty, its "
                "sampler or batch sampler yields nothing (or empty batches), or drop_last=True left out the only one"
            )

    # Steps

    def begin_step(self, plan: StepPlan) -> None:
        """See Driver."""
        if self._journey.is_due and all(newest == self._num_passes for newest in self._beside.values()):
            if self._journey.is_stopping:
                self._listeners.end_pass(self.step, exhausted=False)
            self._listeners.flush()
            self._journey.save_if_due(self.step)
        self.phases.begin_step(plan)

    def begin_step_beside(self, loader: PreparedLoader) -> None:
        """See Driver."""
        self._beside[loader] = self._num_passes
        self.phases.resume_stream()

    def end_pass_beside(self, loader: PreparedLoader) -> None:
        """See Driver."""
        self._beside.pop(loader, None)

    def end_step(self) -> None:
        """See Driver."""
        self.phases.end_step()
        self._num_in_pass += 1
        self._listeners.tick(self.phases.step)

    # Between passes

    def report(self) -> None:
        """Gather what was logged and measured. Every rank must call it, between passes."""
        self.phases.check_outside("the end of the pass")
        if self._owes_tick:
            self._owes_tick = False
            self._listeners.tick(self.step)
        self._listeners.flush()

    def keep_best(self, metric: float, mode: str) -> bool:
        """See ``Team.best``. Every rank must call it."""
        return self._journey.keep_best(metric, mode, self.step, self.epoch)

    def script_failed(self) -> bool:
        """Whether an uncaught exception is ending the script: the interpreter sets ``sys.last_value`` before closing anything.

        Exceptions from before the run do not count; nor do any in a notebook or interactive session, which continues.
        """
        if self.phases.found_wrong:
            return True
        if hasattr(sys, "ps1"):
            return False
        return getattr(sys, "last_value", None) is not self._error_before

    def close(self, *, failed: bool) -> bool:
        """End the run; returns whether all that was to be saved is. Unless the script failed or was stopped, every rank must
        call it."""
        if self._leader is not None:  # the script still holds an iterator
            self.leave(self._leader, exhausted=False, failed=failed)
        if self.phases.was_left and not failed:
            left_step, self.phases.was_left = self.phases.was_left, 0
            say(
                f"WARNING: step {left_step} was left before the end of its loop over batch.shards, by break or an error "
                "that was caught: it is discarded."
            )
        if not failed:
            self.report()
        return self._journey.close(self.step, failed=failed)
