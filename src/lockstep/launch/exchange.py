"""Messages between the observers of several machines' launchers: one thread posts them, another sends and receives them.

The first machine's launcher receives those of all others, and they only its own, so traffic grows with the number of machines,
not with its square.
"""

from __future__ import annotations

from collections.abc import Mapping


class Exchange:
    """One launcher's end of the exchange. ``number``: of its machine, from 0."""

    def __init__(self, number: int, num_nodes: int) -> None:
        self.number = number
        self.outgoing = ""
        """This launcher's latest message: set by one of its observers, from any thread; empty: none yet."""
        self.received: Mapping[int, str] = {}
        """The latest messages of its peers, by number."""
        self.peers = [each for each in range(num_nodes) if each != number] if number == 0 else [0]

    def receive(self, messages: Mapping[int, bytes]) -> None:
        """Take new messages of peers, by number; an empty one means none yet. Messages of other peers stay."""
        self.received = {**self.received, **{number: text.decode() for number, text in messages.items() if text}}
