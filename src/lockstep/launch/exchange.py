"""What the launchers of several machines tell each other about their running workers: one thread posts messages here, another
sends and receives them.

The first machine's launcher hears all others, and they hear only it, so traffic grows with the number of machines, not with its
square. Little is sent while nobody waits. Once a rank waits for too long, the first launcher asks all for reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Word:
    """A message from one launcher."""

    waited: Sequence[int] = ()
    """Those of its ranks that have waited for too long."""
    asks: bool = False
    """Whether it asks for the reports of all ranks."""
    told: str = ""
    """Who waits for whom, once the user was told."""
    reports: Sequence[Mapping[str, Any]] = ()
    """Of its ranks, if a launcher asks: see ``RankReport.as_json``."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Of its ranks: see ``slow_script_ranks.newest_steps``."""


class Exchange:
    """One launcher's end of the exchange.

    Args:
        number: of its machine, from 0.
        num_nodes: number of machines.
    """

    def __init__(self, number: int, num_nodes: int) -> None:
        self.number = number
        self.to_carry = ""
        """This launcher's latest word, as JSON."""
        self.heard: Mapping[int, Word] = {}
        """The latest words of the launchers that it hears, by number."""
        self.hears = [each for each in range(num_nodes) if each != number] if number == 0 else [0]

    @property
    def has_all_reports(self) -> bool:
        """Whether all launchers that it hears have sent reports of their ranks."""
        return all(each in self.heard and self.heard[each].reports for each in self.hears)

    def say(self, word: Word) -> None:
        """Post a word for the others. From any thread."""
        self.to_carry = json.dumps(asdict(word), separators=(",", ":"))

    def hear(self, words: Mapping[int, str | bytes]) -> None:
        """Receive new words from the others, by number; an empty one means none yet. The words of those not named stay."""
        self.heard = {**self.heard, **{number: Word(**json.loads(text)) for number, text in words.items() if text}}
