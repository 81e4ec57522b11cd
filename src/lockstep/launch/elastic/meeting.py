"""Where the launchers of the nodes meet: a store, kept by one of them, which listens on one address."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from lockstep.launch.elastic.patience import Patience, Stop
from lockstep.launch.nodes import LOST_S, Nodes, Place
from lockstep.tcp_store import connect, serve

OTHERS_S = 5.0
"""How long a meeting may take without a word, once there are enough."""
ALL_RUNS = "lockstep"
"""Prefix of what launchers write into the store."""
_STORE_S = 60.0
"""How long an answer of the store may take, for what somebody is known to be about to write, if no run can go on without."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """This launcher's end of where the nodes meet."""

    nodes: Nodes
    place: Place
    timeout_s: float
    stop: Stop
    store: TCPStore
    server: TCPStore | None
    """Keeps the store, where that is here."""

    @property
    def prefix(self) -> str:
        """Of all that this run writes into the store."""
        return f"{ALL_RUNS}/{self.nodes.run_id}"

    @property
    def own_store(self) -> Store:
        """For what the launchers of this run tell each other."""
        return PrefixStore(self.prefix, self.store)

    @property
    def lost_s(self) -> float:
        """After how many seconds of silence another node, or the store, is taken for lost."""
        return min(LOST_S, self.timeout_s) if self.nodes.is_elastic else self.timeout_s

    @property
    def answer_s(self) -> float:
        """How many seconds an answer of the store may take, for what another node is about to write. (torchelastic looks once
        a second whether all have come: nodes come from a meeting a moment after each other.)"""
        return max(OTHERS_S, min(_STORE_S, self.lost_s))

    def patience(self, remedy: str, timeout_s: float | None = None, *, hints: bool = True) -> Patience:
        """A wait for other nodes, from now."""
        return Patience(self.nodes.place, self.timeout_s if timeout_s is None else timeout_s, self.stop, remedy, hints=hints)

    def another_client(self) -> TCPStore:
        """For another thread: a client that waits for an answer lets nobody else ask."""
        patience = self.patience("Has the machine that keeps the store been lost?")
        return _connect(self.nodes, patience)


def open_meeting(nodes: Nodes, place: Place, timeout_s: float, stop: Stop) -> Meeting:
    """Open the launchers' store, or come to it.

    Raises:
        LaunchError: nobody keeps it, until the timeout.
        StoppedError: somebody has stopped this launcher.
    """
    server = serve(place.listener, place.listens_at, _STORE_S) if place.listener else None
    who = "node 0" if nodes.node_rank is not None else "its machine"
    remedy = (
        f"Was {who} started, with this address and port, and does it run?{nodes.caution} (A longer time to wait: --timeout.)"
    )
    patience = Patience(nodes.place, timeout_s, stop, remedy)
    store = _connect(nodes, patience)
    meeting = Meeting(nodes=nodes, place=place, timeout_s=timeout_s, stop=stop, store=store, server=server)
    store.set_timeout(datetime.timedelta(seconds=meeting.answer_s))
    return meeting


def _connect(nodes: Nodes, patience: Patience) -> TCPStore:
    who = "node 0, which keeps the store" if nodes.node_rank is not None else "the machine that keeps the store"
    store = connect(nodes.host, nodes.port, lambda: patience.remaining_s, lambda why: patience.pause(f"{who} ({why})"))
    store.set_timeout(datetime.timedelta(seconds=_STORE_S))
    return store
