"""Epochs that another library's loop drives, and reports."""

from __future__ import annotations

from typing import Protocol

from lockstep._base.errors import UsageError


class Turns(Protocol):
    """The actions at the beginnings and ends of epochs."""

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Begins an epoch."""

    def end_epoch(self, epoch: int) -> None:
        """Ends an epoch. Collective."""

    def leave_epochs(self, num_epochs: int | None) -> None:
        """Leaves the loop, after so many epochs; None: left early. Collective if it was not."""


class HostedEpochs:
    """A loop over epochs that belongs to a host library: one that drives training, and calls this
    object where ``for epoch in team.epochs(n)`` would begin an epoch and end. Created by
    ``team.hosted_epochs``.

    Args:
        num_epochs: their number.
        first: the first that is left.
        is_within: whether the run resumes within the first one's pass.
        is_past: whether it resumes in a later loop.
        turns: called at their ends.
    """

    unclear_at = "a loop that another library drives"
    """Where an error has left the loop, unless ``end`` is called."""
    is_unclear = False

    def __init__(self, num_epochs: int, first: int, turns: Turns, *, is_within: bool, is_past: bool = False) -> None:
        self.num_epochs = num_epochs
        self.first = first
        """The first epoch to run. ``num_epochs`` or more: all were run by an earlier launch."""
        self.is_within = is_within
        """Whether the run was interrupted in the pass over the training loader of that epoch, and
        resumes there: what comes before the pass has been done."""
        self.is_past = is_past
        """Whether the run was interrupted in a later loop, and resumes there: what was prepared is
        not as it was at the end of this one, although code behind it runs again."""
        self._turns = turns
        self._current: int | None = None
        self._is_over = False

    def begin(self, epoch: int) -> None:
        """Begins an epoch and ends the epoch before. Every rank must call it.

        Raises:
            UsageError: another epoch is due, or the loop has finished.
        """
        due = self.first if self._current is None else self._current + 1
        if self._is_over or epoch != due or epoch >= self.num_epochs:
            state = "the loop has finished" if self._is_over or due >= self.num_epochs else f"epoch {due} is due"
            raise UsageError(
                f"hosted_epochs({self.num_epochs}).begin({epoch}): {state}. Begin each epoch once, in order.",
                code="epoch-out-of-order",
            )
        if self._current is not None:
            self._turns.end_epoch(self._current)
        self._current = epoch
        self._turns.begin_epoch(epoch, self.num_epochs)

    def end(self, *, early: bool = False) -> None:
        """Ends the loop. Every rank must call it. Later calls do nothing.

        Args:
            early: whether the library has left it before its end, as a script does by ``break``.
        """
        if self._is_over:
            return
        self._is_over = True
        is_whole = self.first >= self.num_epochs or self._current == self.num_epochs - 1
        if early or not is_whole:
            self._turns.leave_epochs(None)
            return
        if self._current is not None:
            self._turns.end_epoch(self._current)
        self._turns.leave_epochs(max(self.first, self.num_epochs))

    def leave(self) -> None:
        """Leaves the loop, which the library has not ended."""
        self.end(early=True)

    @property
    def is_over(self) -> bool:
        """Whether the loop has finished."""
        return self._is_over
