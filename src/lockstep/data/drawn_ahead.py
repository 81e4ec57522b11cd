"""Generators that a sampler draws from ahead of the loop, and where they belong once the loop is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.base.digest import digest
from lockstep.data.states import generators_of, put_state, take_state


class DrawnAhead:
    """Generators from which a sampler draws each index when it is asked for: where they were behind each step of a pass.

    Indices are asked for ahead of the loop, further on some processes than on others. A pass that is left early leaves the
    generators as if none had been.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        self._generators = [generator for source in sources for generator in generators_of(source).values()]
        self._behind: dict[int, list[Any]] = {}
        """Their states, by step."""

    def note(self, step: int, newest: int) -> None:
        """The indices of a step have been drawn, and the loop has come to the step ``newest``."""
        if self._generators:
            self._behind = {at: states for at, states in self._behind.items() if at >= newest}
            self._behind[step] = list(map(take_state, self._generators))

    def go_back_to(self, step: int) -> None:
        """Put the generators back to where they were behind a step, unless something else has drawn from them since."""
        newest = max(self._behind, default=step)
        if (
            step in self._behind
            and newest > step
            and digest(list(map(take_state, self._generators))) == digest(self._behind[newest])
        ):
            for generator, state in zip(self._generators, self._behind[step], strict=True):
                put_state(generator, state)
