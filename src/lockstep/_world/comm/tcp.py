"""TCP stores on rank 0: one per endpoint and process, for the life of the process."""

from __future__ import annotations

import errno
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lockstep._base.errors import ConfigError
from lockstep._world.comm.waiter import Waiter
from lockstep._world.machine.addresses import is_loopback, listen, listening
from lockstep._world.machine.names import resolve
from lockstep._world.machine.tcp_store import connect, serve

_stores: dict[tuple[str, int, int], TCPStore] = {}
"""The open stores, by host, port and rank. Never closed, since a process that joins again must not
connect to a server that is closing."""


def tcp_store(host: str, port: int, waiter: Waiter, *, is_private: bool = False) -> TCPStore:
    """Opens the store at a port of rank 0's host: its server on rank 0, a client elsewhere.

    Args:
        host: name or address of rank 0's machine.
        port: a port of that machine.
        waiter: waits for the server; knows the rank.
        is_private: whether the host is a loopback address that means the same machine on all ranks.

    Raises:
        ConfigError: the host is unknown, or rank 0 cannot listen there.
        PeerError: rank 0 did not start the server within the timeout.
    """
    key = (host, port, waiter.rank)
    if key not in _stores:
        try:
            addresses = resolve(host, timeout_s=waiter.remaining_s)
        except OSError as error:
            raise ConfigError(
                f"{waiter.endpoint}: the host name {host!r} does not resolve on this machine ({error})",
                code="host-unresolved",
            ) from error
        if waiter.rank == 0:
            _stores[key] = _serve(host, port, waiter, _address_of(host, addresses, is_private=is_private))
        else:
            _stores[key] = client(host, port, waiter)
    return _stores[key]


def client(host: str, port: int, waiter: Waiter) -> TCPStore:
    """Connects a client to a store, waiting for the server."""
    return connect(host, port, lambda: waiter.remaining_s, lambda reason: waiter.pause(lambda: [0], hint=reason))


def _address_of(host: str, addresses: list[str], *, is_private: bool) -> str | None:
    """The single address on which to listen; None: all addresses of this machine."""
    if is_private:
        return "127.0.0.1" if host == "localhost" else host
    # On some systems a machine's own name resolves to a loopback address, by which others cannot
    # reach it.
    return addresses[0] if len(addresses) == 1 and not is_loopback(addresses[0]) else None


def _serve(host: str, port: int, waiter: Waiter, address: str | None) -> TCPStore:
    try:
        try:
            listener = listen(address, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or address is None or is_loopback(address):
                raise
            # The address is forwarded to this machine: it is of a container's host, or of a
            # gateway.
            address = None
            listener = listen(None, port)
    except OSError as error:
        raise ConfigError(
            f"{waiter.endpoint}: rank 0 cannot listen on port {port} of this machine "
            f"({error.strerror}). If another run or program uses it, choose another port or end that "
            "program",
            code="port-in-use",
        ) from error
    if address is None or not is_loopback(address):
        where = listening(host, address, port)
        print(f"lockstep: rank 0 serves the rendezvous store: it {where}", file=sys.stderr, flush=True)
    return serve(listener, address, max(1.0, waiter.remaining_s))
