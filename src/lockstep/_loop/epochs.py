"""What ``team.epochs()`` returns, and how a loop over it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

from typing_extensions import override

from lockstep._base.errors import UsageError
from lockstep._base.unwinding import frame_left_by_error, may_be_caught


class EpochLoop(Iterator[int]):
    """The iterator of a loop over epochs. If only the ``for`` loop has a reference to it, it is
    deleted as soon as the loop is left, and so learns of it. If the script has another reference,
    ``Loop`` ends it when a later loop or the end of the run shows that it was left.

    Args:
        turns: gives the epochs; closed when the loop is left early. Its first turn begins the loop.
        begin: called before the first turn.
        leave_by_error: called when the loop is left by an error, before ``turns`` is closed, with
            the frame of the ``for``.
    """

    is_unclear = True
    """Whether ``unclear_at`` is uncertain."""

    def __init__(
        self, turns: Iterator[int], begin: Callable[[EpochLoop], None], leave_by_error: Callable[[FrameType], None]
    ) -> None:
        self._turns = turns
        self._begin = begin
        self._leave_by_error = leave_by_error
        self._has_begun = False
        self._is_open = False
        self._is_superseded = False
        self._unclear_at: str | None = None

    @property
    def unclear_at(self) -> str | None:
        """The line of a loop that the script left, with another reference to its iterator, if a
        caught error may have left it; None: if the script ended well, ``break`` or ``return`` left
        it."""
        return self._unclear_at if self._is_open else None

    @override
    def __next__(self) -> int:
        if self._is_superseded:
            raise UsageError(
                "a loop over team.epochs() was continued after a later one began: a run has one position, and the later loop "
                "has moved it. Finish one loop before the next, and use range(n) for an outer or inner loop.",
                code="epochs-superseded",
            )
        if not self._has_begun:
            self._has_begun = True
            self._begin(self)
        frame = sys._getframe(1)
        self._unclear_at = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if may_be_caught(frame) else None
        self._is_open = True
        try:
            return next(self._turns)
        except StopIteration:
            self._is_open = False
            raise
        except BaseException:
            self._is_open = False
            self._leave_by_error(frame)
            raise

    def leave(self) -> None:
        """Leaves the loop, which the script has not finished and still refers to."""
        if self._is_open:
            self._is_open, self._is_superseded = False, True
            self._turns.close()  # type: ignore[attr-defined]

    def __del__(self) -> None:
        if self._is_open:
            self._is_open = False
            if not sys.is_finalizing() and (frame := frame_left_by_error(sys._getframe(1))) is not None:
                self._leave_by_error(frame)
            self._turns.close()  # type: ignore[attr-defined]


class Epochs(Iterator[int]):
    """The epochs 0 to ``num_epochs - 1``, less the epochs that an earlier launch has done. Each
    loop over it goes through the epochs that are left."""

    def __init__(self, num_epochs: int, make_loop: Callable[[Epochs], EpochLoop]) -> None:
        self.num_epochs = num_epochs
        self.next = 0
        """The first epoch that no loop has given yet."""
        self._make_loop = make_loop
        self._own: EpochLoop | None = None
        """The loop of ``next(epochs)``; None: there was no such call."""

    @override
    def __iter__(self) -> EpochLoop:
        return self._make_loop(self)

    @override
    def __next__(self) -> int:
        self._own = self._own or iter(self)
        return next(self._own)
