"""Where in its script a run is, and how a launch that resumes it finds that place again. Pure.

A script is run from its top again; what it has done already is passed over. Three things are counted for that, and
nothing else of the script is known: calls of ``team.epochs()``, the epochs of each, and passes over training loaders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in a script."""

    section: int = 0
    """Odd in a loop over ``team.epochs()`` (1 in the first), even before, between and after such loops."""
    epoch: int = 0
    passes: int = 0
    """Passes over training loaders that were made before, in this epoch (or section)."""
    in_pass: bool = False
    """Whether the place is within a pass; else it is between two."""

    def key(self) -> tuple[int, int, int]:
        """Places in the order in which a script comes by them."""
        return (self.section, self.epoch, self.passes)

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Position:
        """What ``as_json`` gave."""
        return Position(**value)

    def __str__(self) -> str:
        where = f"epoch {self.epoch + 1}" if self.section % 2 else "the part outside of team.epochs()"
        return f"{where}, {'in' if self.in_pass else 'before'} pass {self.passes + 1} over a training loader"


class ScriptCursor:
    """The way of this launch through the script, and the place that it is to go on from.

    Args:
        target: that place; None: the run is new.
        is_end: whether the script had come to its end there.
    """

    def __init__(self, target: Position | None = None, *, is_end: bool = False) -> None:
        self.target = target
        """None as soon as it has been come to."""
        self.is_end = is_end
        self._section = 0
        self._epoch = 0
        self._passes = 0
        self._in_pass = False
        self._pass_is_of_before = False
        self._end: Position | None = None
        """The end of the last loop over epochs, if that came to its end and nothing was trained since."""

    def here(self) -> Position:
        """Where the run is now."""
        began_here = self._in_pass and not self._pass_is_of_before
        return Position(section=self._section, epoch=self._epoch, passes=self._passes - began_here, in_pass=self._in_pass)

    def end(self) -> Position:
        """Where the run is when the script is over: more epochs may be asked for later."""
        return self._end or self.here()

    def enter_epochs(self, num_epochs: int) -> int:
        """A loop over ``team.epochs()`` begins: returns the epoch that it begins with."""
        self._go_to(self._section + 1)
        self._end = None
        if self.target is None or self.target.section < self._section:
            self._check()
            return 0
        return num_epochs if self._section < self.target.section else self.target.epoch

    def begin_epoch(self, epoch: int) -> None:
        """One of its epochs begins."""
        self._epoch, self._passes, self._pass_is_of_before = epoch, 0, True

    def after_epoch(self, epoch: int) -> Position:
        """The place between this epoch of the loop at hand and the next."""
        return Position(section=self._section, epoch=epoch + 1)

    def leave_epochs(self, num_epochs: int | None) -> None:
        """The loop over epochs is over: after so many; None: it was left before."""
        section = self._section
        self._go_to(section + 1)
        self._end = None if num_epochs is None else Position(section=section, epoch=num_epochs)

    def arrives(self, num_epochs: int | None = None) -> bool:
        """Whether this is the place to go on from, and not within a pass. Then it is one only once.

        Args:
            num_epochs: of the loop over epochs that is about to begin; None: none is.
        """
        target = self.target
        if target is None or target.in_pass:
            return False
        over = num_epochs is not None and target.section == self._section and target.epoch >= num_epochs
        if over or target.key() == self.here().key():
            self.target = None
            return True
        return False

    def skips(self) -> bool:
        """Whether the pass that is about to begin was made before the interruption; it counts as made now."""
        if self.target is None:
            return False
        self._check()
        if self.here().key() == self.target.key():
            return False
        self._passes += 1
        self._end = None
        return True

    def begin_pass(self) -> bool:
        """A pass begins. True: it is the one to resume."""
        self._in_pass, self._pass_is_of_before = True, False
        self._passes += 1
        self._end = None
        found = self.target is not None
        self.target = None
        return found

    def end_pass(self) -> None:
        """It is over, or left."""
        self._in_pass = False

    def _go_to(self, section: int) -> None:
        self._section, self._epoch, self._passes, self._pass_is_of_before = section, 0, 0, True

    def _check(self) -> None:
        if self.target is not None and self.here().key() > self.target.key():
            raise UsageError(
                f"the run was interrupted at {self.target}, and the script has now come to {self.here()} without passing "
                "there: its loops are others than they were. Start anew with --fresh (or fresh=True); the interrupted run "
                "is kept."
            )
