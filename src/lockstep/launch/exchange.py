"""Messages between the launchers of several machines about their running workers: one thread posts them, another sends and
receives them.

The first machine's launcher receives those of all others, and they only its own, so traffic grows with the number of machines,
not with its square. Little is sent while nobody waits. Once a rank waits for too long, the first launcher requests reports from
all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


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
    steps: Sequence[Mapping[str, Any]] = ()
    """Of its ranks: see ``slow_script_ranks.newest_steps``, and the time that they lose in saving."""


class Exchange:
    """One launcher's end of the exchange. ``number``: of its machine, from 0."""

    def __init__(self, number: int, num_nodes: int) -> None:
        self.number = number
        self.outgoing = ""
        """This launcher's latest message, as JSON."""
        self.received: Mapping[int, Message] = {}
        """The latest messages of its peers, by number."""
        self.peers = [each for each in range(num_nodes) if each != number] if number == 0 else [0]

    @property
    def has_all_reports(self) -> bool:
        """Whether all peers have sent reports of their ranks."""
        return all(each in self.received and self.received[each].reports for each in self.peers)

    def post(self, message: Message) -> None:
        """Post a message for the peers. May be called from any thread."""
        self.outgoing = json.dumps(asdict(message), separators=(",", ":"))

    def receive(self, messages: Mapping[int, str | bytes]) -> None:
        """Take new messages of peers, by number; an empty one means none yet. Messages of other peers stay."""
        new = {number: Message(**json.loads(text)) for number, text in messages.items() if text}
        self.received = {**self.received, **new}
