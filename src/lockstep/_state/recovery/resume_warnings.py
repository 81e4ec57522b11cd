"""Warns of code in the script's loop that a resumed launch would not run again, so that the launch
would be refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from lockstep._base.reports import warn
from lockstep._listener import Listener
from lockstep._state.recovery.position import Resumption


class ResumeWarnings(Listener):
    """The warnings about a later resume: once, in the launch that could still be changed, and not
    in the one that is refused.

    Args:
        resumption: the position of the script.
        may_warn: whether to print warnings: on one rank, and only if checkpoints are saved.
    """

    def __init__(self, resumption: Resumption, *, may_warn: bool) -> None:
        self._resumption = resumption
        self._warns_of_prepare = may_warn

    @override
    def prepared(self, item: Any) -> None:
        self._check_place(item)

    @override
    def prepared_loader(self, batches: Iterable[Any]) -> None:
        self._check_place(batches)

    def _check_place(self, item: Any) -> None:
        if self._warns_of_prepare and self._resumption.is_in_epochs:
            self._warns_of_prepare = False
            warn(
                f"this {type(item).__name__} is prepared inside the loop over team.epochs(). A launch that resumes in a later "
                "epoch skips this code, and is refused. Prepare before the loop, or write `for epoch in range(n)`, where the "
                "code around finished passes runs again.",
                code="prepared-in-epoch",
            )
