"""The rendezvous endpoint of several machines' launchers, as seen from this machine."""

from __future__ import annotations

import dataclasses
import errno
import socket
from dataclasses import dataclass

from lockstep._base.errors import ConfigError
from lockstep._base.stopping import say
from lockstep._launch.nodes import Nodes
from lockstep._launch.secret import SharedSecret
from lockstep._world.machine.addresses import (
    SOMEWHERE,
    addresses_of,
    is_loopback,
    listen,
    listening,
    source_address,
)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """This machine's side of the rendezvous."""

    nodes: Nodes
    secret: SharedSecret
    local_address: str
    """The address by which the others reach this machine."""
    listener: socket.socket | None
    """The socket of the store, if this node keeps it; else None."""
    listens_at: str | None
    """The address on which it listens; None: all addresses of this machine."""


def find_endpoint(nodes: Nodes, secret: SharedSecret) -> Endpoint:
    """Look up the rendezvous endpoint, and listen there if it is on this machine.

    Raises:
        ConfigError: the host is unknown, or should be this machine and is not; or the port is in
            use.
    """
    addresses = _resolve(nodes)
    address = source_address(nodes.host)
    if address is None:
        raise ConfigError(f"{nodes.endpoint}: this machine has no way to {', '.join(addresses)} (see `ip route`)")
    elsewhere = Endpoint(nodes=nodes, secret=secret, local_address=address, listener=None, listens_at=None)
    if nodes.node_rank not in (0, None):
        return elsewhere
    at: str | None = addresses[0]
    if is_loopback(addresses[0]) and not is_loopback(nodes.host):
        # Debian gives a machine's own name a loopback address. Others, for whom it has another one,
        # must get through.
        at, address = None, source_address(SOMEWHERE) or address
    try:
        return dataclasses.replace(elsewhere, local_address=address, listener=listen(at, nodes.port), listens_at=at)
    except OSError as error:
        is_foreign = error.errno == errno.EADDRNOTAVAIL
        if nodes.node_rank is None and (is_foreign or error.errno == errno.EADDRINUSE):
            # of another node, or another launcher here
            return dataclasses.replace(elsewhere, local_address=address)
        if is_foreign:
            raise ConfigError(
                f"--node-rank 0, but --master-addr {nodes.host} ({addresses[0]}) is not an address of this machine: the "
                "rendezvous is at node 0. Start node 0 on that machine, or give an address of this one"
            ) from error
        raise ConfigError(
            f"node 0 cannot listen at {nodes.endpoint} ({error.strerror}): another run or program has that port. Give all "
            "nodes another --master-port, or end that"
        ) from error


def _resolve(nodes: Nodes) -> list[str]:
    try:
        return addresses_of(nodes.host)
    except OSError as error:
        option = "--rdzv-endpoint" if nodes.node_rank is None else "--master-addr"
        port = ". (The port is --master-port's.)" if ":" in nodes.host else ""
        raise ConfigError(
            f"{option}: this machine ({socket.gethostname()}) cannot resolve {nodes.host!r} ({error}). Give a name that "
            f"resolves on every node (getent hosts NAME), or an address{port}"
        ) from error


def introduce(endpoint: Endpoint) -> None:
    """Report on standard error where this machine listens, and who can reach it."""
    nodes = endpoint.nodes
    who = f"node {nodes.node_rank} of {nodes.count}" if nodes.node_rank is not None else f"one of {nodes.count} nodes"
    role = f"joins the rendezvous at {nodes.endpoint}"
    if endpoint.listener is not None:
        role = f"keeps the rendezvous store: it {listening(nodes.host, endpoint.listens_at, nodes.port)}"
    say(f"{socket.gethostname()} is {who}, and {role}")
