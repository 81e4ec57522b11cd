"""Warning of what the script does in its loop that a launch which resumes would not do again, and
so be refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from lockstep._base.stopping import say
from lockstep._listener import Listener
from lockstep._state.recovery.position import Resumption


class ResumeWarnings(Listener):
    """Warns, once, when it happens rather than when the run is to resume.

    Args:
        resumption: knows where the script is.
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
            say(
                f"WARNING: this {type(item).__name__} is prepared inside the loop over team.epochs(): a launch that resumes "
                "this run in a later epoch begins with that epoch, without what earlier ones have prepared, and is refused. "
                "Prepare before the loop, or write `for epoch in range(n)`, where the code around finished passes runs again."
            )
