"""What the launchers of several machines tell each other of their workers while these run: one thread leaves it here, another
carries it.

The first machine's launcher hears all others, and they hear it: so what is carried grows with the number of machines, not with
its square. Little is said while nobody waits; whoever waits for too long makes the first launcher ask all for their reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Word:
    """What one launcher says."""

    waited: Sequence[int] = ()
    """Those of its ranks that have waited for too long."""
    asks: bool = False
    """Whether it wants to have the reports of all ranks."""
    told: str = ""
    """Who waits for whom, once that was said to the user."""
    reports: Sequence[Mapping[str, Any]] = ()
    """Of its ranks, if somebody asks: see ``RankReport.as_json``."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Of its ranks: see ``slow_script.judge``."""


class Exchange:
    """One launcher's end.

    Args:
        number: of its machine.
        num_nodes: machines.
    """

    def __init__(self, number: int, num_nodes: int) -> None:
        self.number = number
        self.to_carry = ""
        """The newest word of this launcher, for the others."""
        self.heard: Mapping[int, Word] = {}
        """The newest words of those that it hears, by number."""
        self.hears = [each for each in range(num_nodes) if each != number] if number == 0 else [0]

    @property
    def has_all_reports(self) -> bool:
        """Whether all that it hears have said what their ranks do."""
        return all(each in self.heard and self.heard[each].reports for each in self.hears)

    def say(self, word: Word) -> None:
        """Have it carried to the others. From any thread."""
        self.to_carry = json.dumps(asdict(word))

    def hear(self, words: Mapping[int, str | bytes]) -> None:
        """They have come from the others, by number; empty: not yet a word."""
        self.heard = {number: Word(**json.loads(text)) for number, text in words.items() if text}
