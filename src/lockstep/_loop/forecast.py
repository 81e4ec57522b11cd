"""The form that the numbers of a phase are expected to have."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep._loop.numbers import Name, RankNumbers

_REMEMBERED = 50
"""The number of phases of one index after which a name that none of them has used is no longer
predicted. A script may have a name for each of a thousand tasks, or for each step, and each takes
room in the message of every rank."""


class Forecast:
    """The form predicted for phases of one index in their steps: the most backward calls so far, of
    the kinds that the newest had, and values of the names of the newest phases. The same on every
    rank."""

    # The same, although each rank predicts by itself: it learns from the numbers of all ranks,
    # which are the same everywhere. A rank with a form of its own would send a row of another
    # length.

    def __init__(self) -> None:
        self.kinds: list[str] = []
        """The kinds of the backward calls."""
        self.names: dict[Name, int] = {}
        """The names, each with the value of ``num_phases`` when it was last used."""
        self.num_phases = 0
        """The number of phases of this index so far."""

    def foresees(self, numbers: RankNumbers) -> bool:
        """Whether a rank's numbers have this form."""
        # Fewer calls or names than foreseen fit into the row, as empty slots: a rank without
        # samples has none at all.
        has_more = numbers.news or numbers.others or numbers.followers or not numbers.names <= self.names.keys()
        return not has_more and numbers.kinds == self.kinds[: len(numbers.kinds)]

    def learn(self, kinds: list[str], ranks: Sequence[RankNumbers]) -> None:
        """Updates the form with what all ranks had. ``kinds``: of the rank that made the most
        backward calls."""
        if len(kinds) >= len(self.kinds) or kinds != self.kinds[: len(kinds)]:
            self.kinds = kinds
        used: set[Name] = set().union(*(rank.names for rank in ranks))
        self.num_phases += 1
        self.names.update(dict.fromkeys(used, self.num_phases))
        if len(self.names) > len(used):
            oldest = self.num_phases - _REMEMBERED
            self.names = {name: last for name, last in self.names.items() if last > oldest}
