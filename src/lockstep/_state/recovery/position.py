"""The position of a run in its script, and how a resumed launch finds it again. Pure.

A resumed script runs from its top, skipping what was done already. Three counts determine the
position, and nothing else about the script is known: calls of ``team.epochs()``, the epochs of
each, and passes over training loaders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep._base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ScriptPosition:
    """A position in a script."""

    section: int = 0
    """Odd in a loop over ``team.epochs()`` (1 in the first), even before, between and after such
    loops."""
    epoch: int = 0
    passes: int = 0
    """Number of earlier passes over training loaders in this epoch (or section)."""
    in_pass: bool = False
    """Whether the position is within a pass, rather than between passes."""
    num_epochs: int | None = None
    """In a loop over ``team.epochs()``, the number given to it."""

    def key(self) -> tuple[int, int, int]:
        """A sort key: positions in the order in which a script reaches them."""
        return (self.section, self.epoch, self.passes)

    def as_json(self) -> dict[str, Any]:
        """The JSON object for a manifest."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ScriptPosition:
        """The position for a result of ``as_json``."""
        return ScriptPosition(
            **{field.name: value[field.name] for field in dataclasses.fields(ScriptPosition) if field.name in value}
        )

    def __str__(self) -> str:
        where = f"epoch {self.epoch + 1}" if self.section % 2 else "the part outside of team.epochs()"
        return f"{where}, {'in' if self.in_pass else 'before'} pass {self.passes + 1} over a training loader"


class Resumption:
    """Knows where this launch is in the script, and what of the script an earlier launch has done.

    The loop reports each epoch and pass before it begins.

    Args:
        restore: restores the run's state. It is called with True when the position to resume from
            is reached, and with False before that, in the epoch of a pass to resume: then not all
            of the script's objects may have been prepared.
        target: the position from which to resume; None: the run is new.
        is_end: whether the target is the end of the script.
        may_shorten: whether the loop over epochs that was interrupted may now have fewer.
    """

    def __init__(
        self,
        restore: Callable[[bool], None],
        target: ScriptPosition | None = None,
        *,
        is_end: bool = False,
        may_shorten: bool = False,
    ) -> None:
        self.target = target
        """None once it has been reached."""
        self._restore = restore
        self.num_skipped = 0
        """Passes that an earlier launch had completed, and this one has not made."""
        self._target_is_end = is_end
        self._may_shorten = may_shorten
        self._is_at_end = False
        """Whether this launch is at the end that the run had reached before, and has done nothing
        new."""
        self._section = 0
        self._num_epochs: int | None = None
        self._epoch = 0
        self._passes = 0
        self._in_pass = False
        self._pass_is_of_before = False
        self._end: ScriptPosition | None = None
        """The end of the last loop over epochs, if it was completed and nothing was trained
        since."""

    @property
    def is_catching_up(self) -> bool:
        """Whether the code now running had run before the interruption, so that it has no effect
        again."""
        return self.target is not None or self._is_at_end

    @property
    def is_in_epochs(self) -> bool:
        """Whether the script is in a loop over ``team.epochs()``."""
        return self._section % 2 == 1

    def here(self) -> ScriptPosition:
        """The current position."""
        began_here = self._in_pass and not self._pass_is_of_before
        return ScriptPosition(
            section=self._section,
            epoch=self._epoch,
            passes=self._passes - began_here,
            in_pass=self._in_pass,
            num_epochs=self._num_epochs,
        )

    def newest_pass(self) -> tuple[int, int, int]:
        """Section, epoch, and number in it, from 1, of the pass that runs or has run last. The same
        whether it is made or skipped."""
        return (self._section, self._epoch, self._passes)

    def end(self) -> ScriptPosition:
        """The position at the end of the script, from which a later launch may train more
        epochs."""
        return self._end or self.here()

    def enter_epochs(self, num_epochs: int, *, at_once: bool = False) -> int:
        """Enter a loop over ``team.epochs()``; returns its first epoch.

        Args:
            at_once: whether the run is restored here for good, also to a position within a pass:
                everything is prepared, and what comes before the pass in that epoch is not done
                again.

        Raises:
            UsageError: it was interrupted with epochs left, and has fewer now.
        """
        self._arrive()  # at the end of an earlier launch that had not reached this loop
        self._go_to(self._section + 1, num_epochs)
        self._check_num_epochs(num_epochs, "hosted_epochs" if at_once else "epochs")
        self._end = None
        target = self.target
        if target is None or target.section < self._section:
            self._check()
            return 0
        first = num_epochs if self._section < target.section else target.epoch
        is_over = self._section == target.section and first >= num_epochs
        has_arrived = self._arrive(is_over=is_over)
        if at_once:
            self._is_at_end = self._is_at_end and first >= num_epochs
        if not has_arrived and target.in_pass and first < num_epochs:
            if at_once and not target.passes:
                self.target = None
                self._restore(True)
            else:
                # for the script's code before the pass, which sees the state again when that begins
                self._restore(False)
        return first

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self._epoch, self._passes, self._pass_is_of_before = epoch, 0, True
        self._leave_end()
        self._arrive()
        self._is_at_end = False  # the script's code before the pass is new

    def after_epoch(self, epoch: int) -> ScriptPosition:
        """The position between this epoch of the current loop and the next."""
        return ScriptPosition(section=self._section, epoch=epoch + 1, num_epochs=self._num_epochs)

    def leave_epochs(self, num_epochs: int | None) -> None:
        """Leave a loop over epochs, after ``num_epochs``; None: left early."""
        section = self._section
        self._go_to(section + 1)
        self._end = None if num_epochs is None else ScriptPosition(section=section, epoch=num_epochs, num_epochs=num_epochs)
        if num_epochs is not None:
            self._arrive()

    @property
    def next_is_done(self) -> bool:
        """Whether the next pass in this loop over epochs was completed before the interruption."""
        return self.target is not None and self.is_in_epochs and self.here().key() < self.target.key()

    def skips(self) -> bool:
        """Whether the next pass was completed before the interruption. If so it is counted as
        completed."""
        if self.target is None:
            return False
        self._check()
        if self.here().key() == self.target.key():
            return False
        self._passes += 1
        self.num_skipped += 1
        self._end = None
        self._arrive()
        return True

    def begin_pass(self) -> None:
        """Begin a pass."""
        self._leave_end()
        self._in_pass, self._pass_is_of_before = True, False
        self._passes += 1
        self._end = None
        if self.target is not None:
            self.target = None
            self._restore(True)

    def end_pass(self) -> None:
        """End a pass."""
        self._in_pass = False

    def _go_to(self, section: int, num_epochs: int | None = None) -> None:
        self._section, self._epoch, self._passes, self._pass_is_of_before = section, 0, 0, True
        self._num_epochs = num_epochs

    def _arrive(self, *, is_over: bool = False) -> bool:
        """Restore the run if this is the position to resume from, and not within a pass; returns
        whether it is.

        Args:
            is_over: whether the target is the end of the loop over epochs that is about to begin,
                or of a longer one.
        """
        target = self.target
        if target is None or target.in_pass or not (is_over or target.key() == self.here().key()):
            return False
        self.target = None
        self._restore(True)
        self._is_at_end = self._target_is_end
        return True

    def _leave_end(self) -> None:
        """Train a finished run further. Code that has run since the end was reached again was
        already part of its state (a schedule's step in the tail of the last epoch, say), so the
        state is restored once more."""
        if self._is_at_end:
            self._is_at_end = False
            self._restore(True)

    def _check_num_epochs(self, num_epochs: int, call: str) -> None:
        target = self.target
        if target is None or self._target_is_end or target.section != self._section:
            return
        before, least = target.num_epochs, target.epoch + target.in_pass
        if before is None or target.epoch >= before or num_epochs >= (least if self._may_shorten else before):
            return
        raise UsageError(
            f"team.{call}({num_epochs}): the run was interrupted in epoch {target.epoch + 1} of {before}, so it would end "
            "before its time. If the script resumes by itself, too, as in team.epochs(n - start), one of the two is too "
            "many: leave it to lockstep, by team.epochs(n), which begins with the right epoch; or leave it to the script, "
            f"and start a new run each time: --fresh (fresh=True). To have this run end earlier, give it {least} epochs or "
            "more, and --allow epochs."
        )

    def _check(self) -> None:
        if self.target is not None and self.here().key() > self.target.key():
            raise UsageError(
                f"the run was interrupted at {self.target}, and the script has now reached {self.here()} without passing "
                "that point: its loops have changed. Start a new run with --fresh (or fresh=True); the interrupted run is "
                "kept."
            )
