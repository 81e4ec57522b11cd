"""Launchers of many machines that meet: threads of one process, with the launchers' own rendezvous, round and heartbeat over
PyTorch's TCP store on loopback. They start no workers."""

from __future__ import annotations

import collections
import datetime
import logging
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lockstep.launch.elastic.compatibility import agree, launch_name
from lockstep.launch.elastic.connection import Connection
from lockstep.launch.elastic.dynamic_rendezvous import DynamicRendezvous
from lockstep.launch.elastic.heartbeat import Heartbeat
from lockstep.launch.elastic.round import Machine, Round, Start
from lockstep.launch.elastic.signed import SignedStore
from lockstep.launch.elastic.static_rendezvous import StaticRendezvous
from lockstep.launch.elastic.waiter import Stop
from lockstep.launch.endpoint import Endpoint
from lockstep.launch.nodes import QUICK, Nodes
from lockstep.launch.secret import Secret, SharedSecret
from lockstep.world.machine.tcp_store import serve

_TIMEOUT_S = 300.0
_SECRET = Secret(b"of a benchmark")


@dataclass(frozen=True)
class Meeting:
    """What a meeting took."""

    wall_s: float
    """From the first host's first connection until the last host knows its place."""
    cpu_s: float
    """Processor time of all hosts and the store meanwhile."""
    requests: float
    """To the store, of a host on average, without its heartbeats."""
    most_requests: int
    """Of the host with the most."""


class _Counted:
    """A store's client that counts requests."""

    def __init__(self, client: TCPStore) -> None:
        self._client = client
        self.requests: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> Any:
        self.requests[name] += 1
        return getattr(self._client, name)


class _Host:
    """A launcher. ``server``: the store, if it keeps it."""

    def __init__(
        self, number: int, num_hosts: int, port: int, server: TCPStore | None, terms: Mapping[str, str], *, numbered: bool
    ) -> None:
        self._number = number
        self._port = port
        self._server = server
        self._nodes = Nodes(
            least=num_hosts,
            most=num_hosts,
            node_rank=number if numbered else None,
            host="127.0.0.1",
            port=port,
            run_id="benchmark",
            conf=QUICK,
        )
        self._terms = terms
        self.requests = 0
        self.kept = ExitStack()

    def meet(self) -> None:
        """As ``launch.elastic.run`` and ``agent`` do."""
        timeout = datetime.timedelta(seconds=_TIMEOUT_S)
        client = _Counted(TCPStore("127.0.0.1", self._port, None, False, timeout, False))
        secret = SharedSecret(given=_SECRET, path=Path("unused"))
        endpoint = Endpoint(nodes=self._nodes, secret=secret, local_address="127.0.0.1", listener=None, listens_at=None)
        connection = Connection(
            endpoint=endpoint,
            timeout_s=_TIMEOUT_S,
            stop=Stop(),
            store=SignedStore(client, _SECRET, "the benchmark"),  # type: ignore[arg-type]
            secret=_SECRET,
            server=self._server,
        )
        heartbeat = self.kept.enter_context(closing(Heartbeat(connection)))
        agree(connection.run_store, self._terms)
        launch_name(connection.run_store, "benchmark")
        rendezvous = (DynamicRendezvous if self._nodes.node_rank is None else StaticRendezvous)(connection)
        met = rendezvous.next_rendezvous()
        round_ = Round(connection.store, heartbeat, f"{connection.prefix}/round-0", met.rank, met.world_size, lambda: 0)
        self.kept.callback(round_.close)
        machine = Machine(host=f"host{self._number}", address="127.0.0.1", num_ranks=8, keeps_store=self._server is not None)
        round_.begin(machine, Start(used=0, master_port=self._port) if met.rank == 0 else None)
        self.requests = sum(client.requests.values())


def meet(num_hosts: int, *, numbered: bool) -> Meeting:
    """Let hosts meet.

    Args:
        numbered: whether they have numbers (``--node-rank``), or get them from torchelastic (``--rdzv-endpoint``).
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    port = listener.getsockname()[1]
    server = serve(listener, "127.0.0.1", _TIMEOUT_S)
    terms = {"torch": torch.__version__}
    hosts = [
        _Host(number, num_hosts, port, None if number else server, terms, numbered=numbered) for number in range(num_hosts)
    ]
    begin = threading.Event()
    errors: list[BaseException] = []

    def take_part(host: _Host) -> None:
        begin.wait()
        try:
            host.meet()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take_part, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    begin.set()
    for thread in threads:
        thread.join()
    wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    for host in hosts:
        host.kept.close()
    if errors:
        raise errors[0]
    requests = [host.requests for host in hosts]
    return Meeting(wall_s, cpu_s, sum(requests) / num_hosts, max(requests))
