"""The position of a run in its script, and how a resumed launch finds it again. Pure.

A resumed script runs from its top, and lockstep skips the epochs and passes that are already done.
Three counts determine the position: calls of ``team.epochs()``, the epochs of each, and passes over
training loaders. Nothing else about the script is known::

    section 0    build, prepare                              (outside of team.epochs())
    section 1    for epoch in team.epochs(3):
                     for batch in loader: ...                (epoch, passes = 0, then 1)
                     for batch in second_loader: ...         (epoch, passes = 1, then 2)
    section 2    evaluate, export
    section 3    for epoch in team.epochs(2): ...

The state is restored when the script reaches the saved position: at the beginning of an epoch, or
of the pass that was interrupted. Code before that point has run in an earlier launch, and runs
again (building objects) or is skipped (schedules, see ``_prepare/guarded_methods.py``).
"""

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
    """The section of the script: odd in a loop over ``team.epochs()`` (1 in the first), even
    before, between and after these loops."""
    epoch: int = 0
    passes: int = 0
    """The number of earlier passes over training loaders in this epoch (or section)."""
    in_pass: bool = False
    """Whether the position is within a pass, rather than between passes."""
    num_epochs: int | None = None
    """The argument of ``team.epochs()`` in a loop over it."""

    def key(self) -> tuple[int, int, int]:
        """Returns a sort key: the order in which a script reaches positions."""
        return (self.section, self.epoch, self.passes)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object for a manifest."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ScriptPosition:
        """Returns the position for a result of ``as_json``."""
        return ScriptPosition(
            **{field.name: value[field.name] for field in dataclasses.fields(ScriptPosition) if field.name in value}
        )

    def __str__(self) -> str:
        where = f"epoch {self.epoch + 1}" if self.section % 2 else "the part outside of team.epochs()"
        return f"{where}, {'in' if self.in_pass else 'before'} pass {self.passes + 1} over a training loader"


class Resumption:
    """The position of this launch in the script, and the part that an earlier launch has done.

    The loop reports each epoch and pass before it begins.

    Args:
        restore: restores the run's state. The argument is True at the position to resume from. It
            is False at the beginning of the epoch of a pass to resume, where some of the script's
            objects may not be prepared yet.
        target: the position from which to resume; None: the run is new.
        is_end: whether the target is the end of the script.
        may_shorten: whether the interrupted loop over epochs may have fewer epochs now.
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
        """The position to resume from; None: there is none, or it was reached."""
        self._restore = restore
        self.num_skipped = 0
        """The number of passes that an earlier launch completed, and this one skipped."""
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
        """The end of the last loop over epochs, if that was completed and nothing was trained
        since."""

    @property
    def is_catching_up(self) -> bool:
        """Whether the current code had run before the interruption, so that its calls have no
        effect now."""
        return self.target is not None or self._is_at_end

    @property
    def is_in_epochs(self) -> bool:
        """Whether the script is in a loop over ``team.epochs()``."""
        return self._section % 2 == 1

    def here(self) -> ScriptPosition:
        """Returns the current position."""
        # A pass is counted when it begins. While it runs, it is not an *earlier* pass.
        began_here = self._in_pass and not self._pass_is_of_before
        return ScriptPosition(
            section=self._section,
            epoch=self._epoch,
            passes=self._passes - began_here,
            in_pass=self._in_pass,
            num_epochs=self._num_epochs,
        )

    def newest_pass(self) -> tuple[int, int, int]:
        """Returns section, epoch, and number in the epoch (from 1) of the newest pass, whether it
        was made or skipped."""
        return (self._section, self._epoch, self._passes)

    def end(self) -> ScriptPosition:
        """Returns the position at the end of the script, from which a later launch may train more
        epochs."""
        return self._end or self.here()

    def enter_epochs(self, num_epochs: int, *, at_once: bool = False) -> int:
        """Enters a loop over ``team.epochs()``. Returns the first epoch to run.

        Args:
            at_once: whether the final restore happens here, also for a position within a pass or
                before an epoch. All objects are prepared, and the code before the pass in that
                epoch does not run again.

        Raises:
            UsageError: the interrupted loop had more epochs than this one.
        """
        # The target may be the end of a launch that had no such loop: it is reached now.
        self._arrive()
        self._go_to(self._section + 1, num_epochs)
        self._check_num_epochs(num_epochs, "hosted_epochs" if at_once else "epochs")
        target = self.target
        if target is None or target.section < self._section:
            self._check()
            return 0
        first = num_epochs if self._section < target.section else target.epoch
        is_at_end = self._section == target.section and first >= num_epochs
        has_arrived = self._arrive(is_at_end=is_at_end)
        if at_once:
            self._is_at_end = self._is_at_end and first >= num_epochs
        if not has_arrived and first < num_epochs:
            if at_once and not target.passes:
                self.target = None
                self._restore(True)
            elif target.in_pass:
                # For the script's code before the pass (an evaluation, a log line), which reads the
                # state. The pass restores it once more when it begins.
                self._restore(False)
        return first

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch."""
        self._epoch, self._passes, self._pass_is_of_before = epoch, 0, True
        self._leave_end()
        self._arrive()
        self._is_at_end = False  # this epoch is new, and so is the code before its pass

    def after_epoch(self, epoch: int) -> ScriptPosition:
        """Returns the position between this epoch of the current loop and the next."""
        return ScriptPosition(section=self._section, epoch=epoch + 1, num_epochs=self._num_epochs)

    def leave_epochs(self, num_epochs: int | None) -> None:
        """Leaves a loop over epochs, after ``num_epochs``; None: it was left early."""
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
        """Returns whether the next pass was completed before the interruption. If so, counts it as
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
        """Begins a pass."""
        self._leave_end()
        self._in_pass, self._pass_is_of_before = True, False
        self._passes += 1
        self._end = None
        if self.target is not None:
            self.target = None
            self._restore(True)

    def end_pass(self) -> None:
        """Ends a pass."""
        self._in_pass = False

    def _go_to(self, section: int, num_epochs: int | None = None) -> None:
        self._section, self._epoch, self._passes, self._pass_is_of_before = section, 0, 0, True
        self._num_epochs = num_epochs

    def _arrive(self, *, is_at_end: bool = False) -> bool:
        """Restores the run if this is the position to resume from, and not within a pass. Returns
        whether it is.

        Args:
            is_at_end: whether the target is the end of the loop over epochs that is about to begin,
                or of a longer one.
        """
        target = self.target
        if target is None or target.in_pass or not (is_at_end or target.key() == self.here().key()):
            return False
        self.target = None
        self._restore(True)
        self._is_at_end = self._target_is_end
        return True

    def _leave_end(self) -> None:
        """Continues a finished run. The code that has run since its end was reached again (for
        example a schedule's step after the last epoch) was already part of the state, so the state
        is restored once more."""
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
            f"team.{call}({num_epochs}): the run was interrupted in epoch {target.epoch + 1} of {before} and would end too "
            "early. Pass the total number, team.epochs(n), not team.epochs(n - start): lockstep begins with the right epoch. "
            f"To end this run earlier, pass {least} or more, and --allow epochs.",
            code="fewer-epochs",
        )

    def _check(self) -> None:
        if self.target is not None and self.here().key() > self.target.key():
            raise UsageError(
                f"the run was interrupted at {self.target}, but the script reached {self.here()} without passing that point: "
                "its loops have changed. Start a new run with --fresh (fresh=True); the old run is renamed, not deleted.",
                code="position-passed",
            )
