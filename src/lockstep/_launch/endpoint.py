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
    is_loopback,
    listen,
    listening,
    source_address,
)
from lockstep._world.machine.names import PATIENCE_S, NoSuchNameError, is_address, resolve

_ANSWER_S = 2.0
"""Seconds to wait for a connection to another machine that may listen at the endpoint."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """This machine's side of the rendezvous."""

    nodes: Nodes
    secret: SharedSecret
    local_address: str
    """The address by which the others reach this machine."""
    listener: socket.socket | None
    """The socket of the store; None: another node keeps the store."""
    listens_at: str | None
    """The address on which it listens; None: all addresses of this machine."""

    @property
    def store_host(self) -> str:
        """The host at which this launcher reaches the store. Its keeper's own name may mean an
        address that does not lead back to it, as a Kubernetes Service's."""
        return "127.0.0.1" if self.listener is not None and self.listens_at is None else self.nodes.host


def find_endpoint(nodes: Nodes, secret: SharedSecret, timeout_s: float = PATIENCE_S) -> Endpoint:
    """Looks up the rendezvous endpoint, and listens there if it is on this machine.

    Waits for a name that does not resolve yet, or, where this machine should listen, still means
    another one (``names``).

    Args:
        timeout_s: how long the nodes wait for each other, which limits the wait for a name.

    Raises:
        ConfigError: the host is unknown, or should be this machine and is not; or the port is in
            use.
    """
    try:
        addresses = resolve(
            nodes.host,
            timeout_s=timeout_s,
            is_wanted=lambda _: source_address(nodes.host) is not None,
            wanted="and there is no route to it",
        )
    except NoSuchNameError as error:
        raise _unresolved(nodes, error) from error
    address = source_address(nodes.host)
    if is_loopback(addresses[0]) and not is_loopback(nodes.host) and nodes.node_rank in (0, None):
        # Debian gives a machine's own name a loopback address, by which others do not reach it.
        address = source_address(SOMEWHERE) or address
    if address is None:
        raise ConfigError(
            f"{nodes.endpoint}: this machine has no route to {', '.join(addresses)} (see `ip route`)",
            code="endpoint-without-route",
        )
    elsewhere = Endpoint(nodes=nodes, secret=secret, local_address=address, listener=None, listens_at=None)
    if nodes.node_rank not in (0, None):
        return elsewhere
    try:
        at, listener = _listen(nodes, addresses, timeout_s)
    except NoSuchNameError as error:  # it meant another machine, and no longer means any
        raise _unresolved(nodes, error) from error
    except OSError as error:
        is_foreign = error.errno == errno.EADDRNOTAVAIL
        if nodes.node_rank is None and (is_foreign or error.errno == errno.EADDRINUSE):
            # It is of another node, or another launcher here has the port.
            return elsewhere
        if is_foreign:
            raise ConfigError(
                f"--node-rank 0, but --master-addr {nodes.host} ({addresses[0]}) is not an address of this machine. Start "
                "node 0 on that machine, or pass an address of this one",
                code="node-0-elsewhere",
            ) from error
        raise ConfigError(
            f"node 0 cannot listen at {nodes.endpoint} ({error.strerror}): another run or program uses that port. Pass "
            "all nodes another --master-port, or end that program",
            code="port-in-use",
        ) from error
    # By now the name may mean another address than before.
    address = source_address(SOMEWHERE if at is None else nodes.host) or address
    return dataclasses.replace(elsewhere, local_address=address, listener=listener, listens_at=at)


def _listen(nodes: Nodes, addresses: list[str], timeout_s: float) -> tuple[str | None, socket.socket]:
    """The address on which this machine listens, with its socket; None: all of them.

    Raises:
        OSError: it cannot listen there. EADDRNOTAVAIL: the endpoint is another machine's.
    """
    if is_loopback(addresses[0]) and not is_loopback(nodes.host):
        # Others, for whom its name has another address, must get through.
        return None, listen(None, nodes.port)
    try:
        return addresses[0], listen(addresses[0], nodes.port)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or not _may_become_ours(nodes):
            raise
    # The name may still mean the pod that was here before. (An address is meant as it stands.)
    addresses = resolve(
        nodes.host,
        timeout_s=timeout_s,
        is_wanted=lambda found: is_loopback(found[0]) or _is_ours(found[0]),
        wanted="no address of this machine",
    )
    if is_loopback(addresses[0]) or _is_ours(addresses[0]):
        return _listen(nodes, addresses, 0.0)
    if nodes.node_rank is None or _answers(nodes):
        raise OSError(errno.EADDRNOTAVAIL, "the endpoint is another machine's")
    # A virtual address that leads here, as a Kubernetes Service's. Whoever connects must know the
    # secret of the run (`elastic/signed.py`), on this address as on any other.
    return None, listen(None, nodes.port)


def _may_become_ours(nodes: Nodes) -> bool:
    """Whether the endpoint's name, which means another machine now, may be this machine's own."""
    if is_address(nodes.host):
        return False
    if nodes.node_rank == 0:
        return True
    # Nodes without numbers: only by the name. If another one listens there, it keeps the store.
    return nodes.host.partition(".")[0] == socket.gethostname().partition(".")[0] and not _answers(nodes)


def _answers(nodes: Nodes) -> bool:
    """Whether a machine listens at the endpoint."""
    try:
        socket.create_connection((nodes.host, nodes.port), timeout=_ANSWER_S).close()
    except OSError:
        return False
    return True


def _is_ours(address: str) -> bool:
    """Whether an address is one of this machine's."""
    try:
        listen(address, 0).close()
    except OSError:
        return False
    return True


def _unresolved(nodes: Nodes, error: NoSuchNameError) -> ConfigError:
    option = "--rdzv-endpoint" if nodes.node_rank is None else "--master-addr"
    port = ". (The port is --master-port's.)" if ":" in nodes.host else ""
    return ConfigError(
        f"{option}: this machine ({socket.gethostname()}) cannot resolve {nodes.host!r} ({error}). Pass a name that "
        f"resolves on every node (getent hosts NAME), or an address{port}",
        code="host-unresolved",
    )


def introduce(endpoint: Endpoint) -> None:
    """Reports on standard error where this machine listens, and who can reach it."""
    nodes = endpoint.nodes
    who = f"node {nodes.node_rank} of {nodes.count}" if nodes.node_rank is not None else f"one of {nodes.count} nodes"
    role = f"joins the rendezvous at {nodes.endpoint}"
    if endpoint.listener is not None:
        role = f"keeps the rendezvous store: it {listening(nodes.host, endpoint.listens_at, nodes.port)}"
    say(f"{socket.gethostname()} is {who}, and {role}")
