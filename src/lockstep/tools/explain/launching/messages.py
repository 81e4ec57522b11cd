"""What launchers of several machines tell each other of their ranks.

Little is sent while nobody waits. Once a rank waits for too long, the first launcher requests reports from all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.launch.exchange import Exchange


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message from one launcher."""

    waited: Sequence[int] = ()
    """Its ranks that have waited for too long."""
    asks: bool = False
    """Whether it requests reports of all ranks."""
    told: str = ""
    """Who waits for whom, once that was reported to the user."""
    reports: Sequence[Mapping[str, Any]] = ()
    """Of its ranks, on request: see ``RankReport.as_json``."""


class Peers:
    """The other launchers. ``exchange``: None: there are none."""

    def __init__(self, exchange: Exchange | None) -> None:
        self.are_there = exchange is not None
        self._exchange = exchange or Exchange(0, 1)

    @property
    def is_first(self) -> bool:
        """Whether this is the launcher that reports to the user."""
        return self._exchange.number == 0

    def post(self, message: Message) -> None:
        """Post a message for them."""
        self._exchange.outgoing = json.dumps(asdict(message), separators=(",", ":"))

    def received(self) -> dict[int, Message]:
        """Their latest messages, by the number of the machine."""
        return {number: Message(**json.loads(text)) for number, text in self._exchange.received.items()}

    def have_reported(self) -> bool:
        """Whether all have sent reports of their ranks."""
        received = self.received()
        return all(each in received and received[each].reports for each in self._exchange.peers)
