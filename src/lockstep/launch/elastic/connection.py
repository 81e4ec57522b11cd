"""Where the launchers of the nodes have their rendezvous: a store, kept by one of them, which listens on one address."""

from __future__ import annotations

import datetime
import secrets
import time
from dataclasses import dataclass

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lockstep.errors import ConfigError
from lockstep.launch.elastic.signed import SignedStore
from lockstep.launch.elastic.waiter import Stop, Waiter
from lockstep.launch.endpoint import Endpoint
from lockstep.launch.nodes import LOST_S, Nodes
from lockstep.launch.secret import Secret, SharedSecret
from lockstep.machine.tcp_store import connect, serve

OTHERS_S = 5.0
"""How long a rendezvous may take without a word, once there are enough."""
ALL_RUNS = "lockstep"
"""Prefix of what launchers write into the store."""
_KNOWN_BY = f"{ALL_RUNS}/secret"
"""Under this name whoever keeps the store signs a number that he has drawn: who has another secret finds out by it."""
_SEEN_S = 10.0
"""How long a file written by another machine may take to become visible on this one (NFS caches attributes for seconds)."""
_STORE_S = 60.0
"""How long the store may take to answer for a value that is about to be written, and that no run can continue without."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """This launcher's end of the rendezvous."""

    endpoint: Endpoint
    timeout_s: float
    stop: Stop
    store: SignedStore
    secret: Secret
    server: TCPStore | None
    """Keeps the store, where that is here."""

    @property
    def nodes(self) -> Nodes:
        """Those of the run."""
        return self.endpoint.nodes

    @property
    def prefix(self) -> str:
        """Of all that this run writes into the store."""
        return f"{ALL_RUNS}/{self.nodes.run_id}"

    @property
    def own_store(self) -> SignedStore:
        """For what the launchers of this run tell each other."""
        return self.store.under(self.prefix)

    @property
    def lost_s(self) -> float:
        """After how many seconds of silence another node, or the store, is taken for lost."""
        return min(LOST_S, self.timeout_s) if self.nodes.is_elastic else self.timeout_s

    @property
    def answer_s(self) -> float:
        """How many seconds an answer of the store may take, for what another node is about to write. (torchelastic looks once
        a second whether all have come: nodes come from a rendezvous a moment after each other.)"""
        return max(OTHERS_S, min(_STORE_S, self.lost_s))

    def waiter(self, remedy: str, timeout_s: float | None = None, *, hints: bool = True) -> Waiter:
        """A wait for other nodes, from now."""
        return Waiter(
            self.nodes.endpoint, self.timeout_s if timeout_s is None else timeout_s, self.stop, remedy, hints=hints
        )

    def another_client(self) -> SignedStore:
        """For another thread: a client that waits for an answer lets nobody else ask."""
        waiter = self.waiter("Has the machine that keeps the store been lost?")
        return SignedStore(_connect(self.nodes, waiter), self.secret, self.nodes.endpoint)


def open_connection(endpoint: Endpoint, timeout_s: float, stop: Stop) -> Connection:
    """Open the launchers' store, or come to it.

    Raises:
        ConfigError: whoever keeps the store has another secret.
        LaunchError: nobody keeps it, until the timeout.
        StoppedError: somebody has stopped this launcher.
    """
    nodes = endpoint.nodes
    server = serve(endpoint.listener, endpoint.listens_at, _STORE_S) if endpoint.listener else None
    who = "node 0" if nodes.node_rank is not None else "its machine"
    remedy = (
        f"Was {who} started, with this address and port, and does it run?{nodes.caution} (A longer time to wait: --timeout.)"
    )
    waiter = Waiter(nodes.endpoint, timeout_s, stop, remedy)
    client = _connect(nodes, waiter)
    secret = _recognised(client, endpoint.secret, nodes, waiter, is_keeper=server is not None)
    store = SignedStore(client, secret, nodes.endpoint)
    connection = Connection(endpoint=endpoint, timeout_s=timeout_s, stop=stop, store=store, secret=secret, server=server)
    client.set_timeout(datetime.timedelta(seconds=connection.answer_s))
    return connection


def _recognised(client: TCPStore, shared: SharedSecret, nodes: Nodes, waiter: Waiter, *, is_keeper: bool) -> Secret:
    """The secret of this store: derived from that of the run, and from a number that whoever keeps the store has drawn for it.

    What was recorded of an earlier store can so not be played into this one.
    """
    deadline = time.monotonic() + _SEEN_S
    while True:
        secret, is_told = shared.look(), False
        if secret is not None and is_keeper:
            nonce = secrets.token_hex(16).encode()
            client.set(_KNOWN_BY, secret.sign(_KNOWN_BY, nonce).decode())
            return secret.derived(nonce)
        if client.check([_KNOWN_BY]):
            is_told = True
            received = None if secret is None else secret.open(_KNOWN_BY, client.get(_KNOWN_BY))
            if secret is not None and received is not None:
                return secret.derived(received)
        if is_keeper or (is_told and shared.given is not None) or time.monotonic() > deadline:
            if is_told or is_keeper:
                raise shared.not_shared(f"the launcher that keeps the store at {nodes.endpoint}")
            raise ConfigError(
                f"what listens at {nodes.endpoint} is a store of PyTorch's, and not that of a launcher of this lockstep: give "
                "the run a port of its own, and all nodes the same version"
            )
        where = "" if shared.given else f", in {shared.path}"
        waiter.pause(f"the secret of the run{where}, {_SEEN_S:g} s at most", ends=False)


def _connect(nodes: Nodes, waiter: Waiter) -> TCPStore:
    who = "node 0, which keeps the store" if nodes.node_rank is not None else "the machine that keeps the store"
    store = connect(nodes.host, nodes.port, lambda: waiter.remaining_s, lambda why: waiter.pause(f"{who} ({why})"))
    store.set_timeout(datetime.timedelta(seconds=_STORE_S))
    return store
