"""This launch's way through the script: where it resumes, what it skips, and where checkpoints are saved."""

from __future__ import annotations

from lockstep.base.errors import MismatchError
from lockstep.base.stopping import say
from lockstep.state.recovery.parted import PartedRanks
from lockstep.state.recovery.position import ScriptCursor
from lockstep.state.recovery.resuming import Restorer
from lockstep.state.recovery.saving import Saver


class Journey:
    """Coordinates the position in the script (``ScriptCursor``), restoring, and saving.

    Args:
        cursor: tracks the position in the script.
        restorer: restores the checkpoint from which the run resumes; None: the run is new.
        saver: saves checkpoints.
        parted: checks before each checkpoint that the ranks have not diverged.
        is_main: whether this is rank 0, which prints.
    """

    def __init__(
        self, cursor: ScriptCursor, restorer: Restorer | None, saver: Saver, parted: PartedRanks, *, is_main: bool
    ) -> None:
        self.step_reached: int | None = None
        """The step after which the run has resumed, until the loop has taken it over."""
        self._cursor = cursor
        self._restorer = restorer
        self._saver = saver
        self._parted = parted
        self._is_main = is_main
        self._epoch = 0
        self._is_at_end = False
        """Whether this launch is at the end that the run had reached before, and has done nothing new."""
        self._has_warned = False
        self._resumed_after = 0
        """The step after which this launch has resumed."""
        self._end: tuple[int, int] | None = None
        """The step at the end of the last loop over epochs, and the digest of the state saved there."""

    @property
    def section(self) -> int:
        """Number of the current section of the script: odd in a loop over ``team.epochs()``."""
        return self._cursor.here().section

    @property
    def is_in_epochs(self) -> bool:
        """Whether the script is in a loop over ``team.epochs()``."""
        return self.section % 2 == 1

    @property
    def newest_pass(self) -> tuple[int, int, int]:
        """Identifies the pass that runs or has run last, as it does in any launch that makes or skips it."""
        return self._cursor.newest_pass()

    @property
    def is_replaying(self) -> bool:
        """Whether the code now running had run before the interruption."""
        return self._cursor.target is not None or self._is_at_end

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is to be saved before the next step. The same on every rank."""
        return self._saver.is_due

    def enter_epochs(self, num_epochs: int) -> int:
        """Enter a loop over ``team.epochs()``; returns its first epoch."""
        self._arrive()  # at the end of an earlier launch that had not reached this loop
        first = self._cursor.enter_epochs(num_epochs)
        is_over = self._arrive(num_epochs)
        target = self._cursor.target
        if not is_over and target is not None and target.in_pass and first < num_epochs:
            self._restore(
                is_final=False
            )  # for the script's code before the pass, which sees the state again when that begins
        return first

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self._epoch = epoch
        self._cursor.begin_epoch(epoch)
        self._leave_end()
        self._arrive()
        self._is_at_end = False  # the script's code before the pass is new

    def end_epoch(self, epoch: int, step: int, *, is_in_pass: bool) -> None:
        """End an epoch. Every rank must call it."""
        self._saver.ask()
        if not is_in_pass and self._saver.is_due:
            self._parted.compare(step, f"at the end of epoch {epoch + 1}")
            self._saver.save_due(self._cursor.after_epoch(epoch), step, self._epoch)

    def leave_epochs(self, num_epochs: int | None, step: int) -> None:
        """Leave a loop over epochs, after ``num_epochs``; None: left early."""
        self._cursor.leave_epochs(num_epochs)
        is_new = num_epochs is None or (not self._arrive() and not self.is_replaying and step > self._resumed_after)
        if is_new:
            self._parted.leave_epochs()
        if is_new and num_epochs is not None:
            self._parted.compare(step, "after the last epoch")
            if self._saver.save_end(self._cursor.end(), step, self._epoch):
                self._end = (step, self._parted.digest())

    def skips(self) -> bool:
        """Whether the next pass was completed before the run was interrupted, and is skipped."""
        if not self._cursor.skips():
            return False
        if not self._has_warned and self._is_main and not self.is_in_epochs:
            say(
                "passes over the training loader that were made before the interruption are skipped, but the code around "
                "them runs again: use `for epoch in team.epochs(n)`, which begins with the right epoch. If the script resumes "
                "by itself, too, as in `range(start_epoch, n)`, it would end too early: leave that to lockstep."
            )
            self._has_warned = True
        self._arrive()
        return True

    def begin_pass(self) -> None:
        """Begin a pass over a training loader."""
        self._leave_end()
        if self._cursor.begin_pass():
            self._restore(is_final=True)

    def end_pass(self, step: int, *, exhausted: bool) -> None:
        """End a pass over a training loader."""
        self._cursor.end_pass()
        if exhausted and not self.is_in_epochs:
            self.save_if_due(step)  # in a loop over team.epochs() this waits for the epoch's tail

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends with the checkpoint that is due."""
        return self._saver.is_stopping

    def save_if_due(self, step: int) -> None:
        """Save the checkpoint that is due, between two steps: the next batch has been fetched, but its step has not begun."""
        if self._saver.is_due:
            self._parted.before_save(step)
            self._saver.save_due(self._cursor.here(), step, self._epoch)

    def close(self, step: int, *, failed: bool) -> bool:
        """End the run; returns whether all that was to be saved is. Unless the script failed, every rank must call it."""
        if self._cursor.target is not None and not failed and self._is_main:
            say(
                f"WARNING: the run was interrupted at {self._cursor.target}, and the script did not reach that point: it has "
                "not resumed, and no checkpoint is written."
            )
        failed = failed or self._parted.have_parted
        if self.is_replaying:  # nothing was trained
            return True
        is_saved = False
        try:
            if not failed and step > 0:
                is_same = self._parted.compare_at_end(step)
                is_saved = self._end is not None and self._end[0] == step
                # (What rank 0 alone has changed since is no part of the run.)
                is_saved = is_saved and (not is_same or self._end == (step, self._parted.digest()))
        except MismatchError:
            self._saver.close(self._cursor.end(), step, self._epoch, failed=True)
            raise
        return self._saver.close(self._cursor.end(), step, self._epoch, failed=failed, is_saved=is_saved)

    def keep_best(self, metric: float, mode: str, step: int, epoch: int) -> bool:
        """Save the weights if the metric is the best so far; returns whether it is. Every rank must call it."""
        if not self._saver.is_best(metric, mode):
            return False
        self._parted.compare(step, "before the best weights are saved")
        self._saver.keep_best(metric, step, epoch)
        return True

    def _arrive(self, num_epochs: int | None = None) -> bool:
        """Restore the run if this is the position to resume from (see ``ScriptCursor.arrives``); returns whether it is."""
        if not self._cursor.arrives(num_epochs):
            return False
        self._restore(is_final=True)
        self._is_at_end = self._cursor.is_end
        return True

    def _leave_end(self) -> None:
        """Train a finished run further. Code that has run since the end was reached again was already part of its state (a
        schedule's step in the tail of the last epoch, say), so the state is restored once more."""
        if self._is_at_end:
            self._is_at_end = False
            self._restore(is_final=True)

    def _restore(self, *, is_final: bool) -> None:
        assert self._restorer is not None
        self._restorer.apply(is_final=is_final)
        self.step_reached = self._resumed_after = self._restorer.checkpoint.manifest.step
