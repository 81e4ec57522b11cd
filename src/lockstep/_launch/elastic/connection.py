"""The connection to the launchers' store, which one of them keeps."""

from __future__ import annotations

import datetime
import secrets
import time
from dataclasses import dataclass

from torch.distributed import DistStoreError, TCPStore  # type: ignore[attr-defined]

from lockstep._base.errors import ConfigError
from lockstep._launch.elastic.signed import SignedStore
from lockstep._launch.elastic.waiter import PAUSE_S, Stop, Waiter
from lockstep._launch.endpoint import Endpoint
from lockstep._launch.nodes import LOST_S, Nodes
from lockstep._launch.secret import Secret, SharedSecret
from lockstep._world.machine.open_files import allow_connections
from lockstep._world.machine.tcp_store import connect, serve

OTHERS_S = 5.0
"""Seconds that a rendezvous may take without a message, once there are enough nodes."""
ALL_RUNS = "lockstep"
"""Prefix of the launchers' entries in the store."""
_GREETING = f"{ALL_RUNS}/greeting"
"""The entry in which the store's keeper writes a nonce, signed with the secret of the run. All
other entries are signed with a secret derived from both, so that recorded entries of an earlier
store cannot be replayed."""
_SEEN_S = 10.0
"""Seconds until a file written by another machine must be visible (NFS caches attributes for
seconds)."""
_ASKED_PER_S = 2000.0
"""The largest number of requests to the store in a second, of all nodes that wait."""
_BEAT_S = 0.25
_BEATS_PER_S = 2000.0
"""The largest number of heartbeats in a second, of all nodes."""
_STORE_S = 60.0
"""Seconds to wait for a value that is about to be written, and that no run can continue without."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """This launcher's end of the rendezvous."""

    endpoint: Endpoint
    timeout_s: float
    stop: Stop
    store: SignedStore
    secret: Secret
    server: TCPStore | None
    """The store itself, if this launcher keeps it."""

    @property
    def nodes(self) -> Nodes:
        """The nodes of the run."""
        return self.endpoint.nodes

    @property
    def prefix(self) -> str:
        """The prefix of this run's entries in the store."""
        return f"{ALL_RUNS}/{self.nodes.run_id}"

    @property
    def run_store(self) -> SignedStore:
        """The store, with that prefix."""
        return self.store.under(self.prefix)

    def round_store(self, count: int) -> SignedStore:
        """The store, with the prefix of a round. ``count``: the number of earlier ones."""
        return self.run_store.under(f"round-{count}")

    @property
    def lost_s(self) -> float:
        """Seconds of silence after which another node, or the store, counts as lost."""
        return min(LOST_S, self.timeout_s) if self.nodes.is_elastic else self.timeout_s

    @property
    def answer_s(self) -> float:
        """Seconds to wait for a value that another node is about to write. (torchelastic checks
        once a second whether all nodes are there, so they leave a rendezvous at slightly different
        times.)"""
        return max(OTHERS_S, min(_STORE_S, self.lost_s))

    @property
    def beat_s(self) -> float:
        """Seconds between two heartbeats of a node."""
        # The limit applies above 500 nodes: four beats a second of 500 are 2,000.
        return max(_BEAT_S, self.nodes.most / _BEATS_PER_S)

    def waiter(self, remedy: str, timeout_s: float | None = None) -> Waiter:
        """A wait for other nodes that begins now. ``timeout_s``: None: the run's."""
        return Waiter(
            self.nodes.endpoint,
            self.timeout_s if timeout_s is None else timeout_s,
            self.stop,
            remedy,
            # The limit applies above 200 nodes: ten requests a second of 200 are 2,000.
            pause_s=max(PAUSE_S, self.nodes.most / _ASKED_PER_S),
        )

    def another_client(self) -> SignedStore:
        """Another client, for the thread that calls this: a client that waits for a reply blocks
        all threads that use it."""
        waiter = self.waiter("Has the machine that keeps the store been lost?")
        return SignedStore(_connect(self.endpoint, waiter), self.secret, self.nodes.endpoint)


def open_connection(endpoint: Endpoint, timeout_s: float, stop: Stop) -> Connection:
    """Starts the launchers' store if this node keeps it, and connects to it.

    Raises:
        ConfigError: its keeper has another secret.
        LaunchError: it was not started within the timeout.
        StoppedError: this launcher was stopped.
    """
    nodes = endpoint.nodes
    if endpoint.listener:
        # Two connections of each launcher, and some of ranks: see the limits in
        # docs/internals/scale.md.
        allow_connections(4 * nodes.most)
    server = serve(endpoint.listener, endpoint.listens_at, _STORE_S) if endpoint.listener else None
    who = "node 0" if nodes.node_rank is not None else "its machine"
    remedy = f"Was {who} started, with this address and port, and is it running? (To wait longer: --timeout.)"
    waiter = Waiter(nodes.endpoint, timeout_s, stop, remedy)
    client = _connect(endpoint, waiter)
    if server is None:
        secret, nonce = _greeted(client, endpoint.secret, nodes, waiter)
    else:
        mine, nonce = endpoint.secret.look(), secrets.token_hex(16).encode()
        if mine is None:
            raise endpoint.secret.not_shared(f"this launcher, which keeps the store at {nodes.endpoint},")
        secret = mine
        client.set(_GREETING, secret.sign(_GREETING, nonce).decode())
    own = secret.derived(nonce)
    connection = Connection(
        endpoint=endpoint,
        timeout_s=timeout_s,
        stop=stop,
        store=SignedStore(client, own, nodes.endpoint),
        secret=own,
        server=server,
    )
    client.set_timeout(datetime.timedelta(seconds=connection.answer_s))
    return connection


def _greeted(client: TCPStore, shared: SharedSecret, nodes: Nodes, waiter: Waiter) -> tuple[Secret, bytes]:
    """The secret of the run, and the nonce that the store's keeper has signed with it."""
    client.set_timeout(datetime.timedelta(seconds=_SEEN_S))
    try:
        signed = client.get(_GREETING)
    except DistStoreError as error:
        raise ConfigError(
            f"{nodes.endpoint} is used by another PyTorch store, or by a different version of "
            "lockstep. Use a separate port for this run, and the same version on all machines",
            code="endpoint-of-another-store",
        ) from error
    deadline = time.monotonic() + _SEEN_S
    while True:
        secret = shared.look()
        nonce = None if secret is None else secret.open(_GREETING, signed)
        if secret is not None and nonce is not None:
            return secret, nonce
        # A secret that the user has passed does not change, but the file may still become visible.
        if shared.given is not None or time.monotonic() > deadline:
            raise shared.not_shared(f"the launcher that keeps the store at {nodes.endpoint}")
        waiter.pause(f"the secret of the run, in {shared.path}, up to {_SEEN_S:g} s", ends=False)


def _connect(endpoint: Endpoint, waiter: Waiter) -> TCPStore:
    nodes = endpoint.nodes
    who = "node 0, which keeps the store" if nodes.node_rank is not None else "the machine that keeps the store"
    store = connect(endpoint.store_host, nodes.port, lambda: waiter.remaining_s, lambda why: waiter.pause(f"{who} ({why})"))
    store.set_timeout(datetime.timedelta(seconds=_STORE_S))
    return store
