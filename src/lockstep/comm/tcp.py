"""TCP stores that rank 0 keeps: one a process for each endpoint, for the life of the process."""

from __future__ import annotations

import errno
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lockstep.comm.waiter import Waiter
from lockstep.errors import ConfigError
from lockstep.machine.addresses import addresses_of, is_loopback, listen, listening
from lockstep.machine.tcp_store import connect, serve

_stores: dict[tuple[str, int, int], TCPStore] = {}
"""By host, port and rank. A process that joins again must not come to a server that is just closing, so none is closed."""


def tcp_store(host: str, port: int, waiter: Waiter, *, is_private: bool = False) -> TCPStore:
    """The store at a port of rank 0's host: its server on rank 0, a client elsewhere.

    Args:
        host: rank 0's machine, by name or address.
        port: of that machine.
        waiter: for the server, and with the rank.
        is_private: the host is a loopback address, and all ranks are known to mean the same machine by it.

    Raises:
        ConfigError: the host is not known, or rank 0 cannot listen there.
        PeerError: rank 0 has not come in time.
    """
    key = (host, port, waiter.rank)
    if key not in _stores:
        try:
            addresses = addresses_of(host)
        except OSError as error:
            raise ConfigError(f"{waiter.endpoint}: this machine knows no host {host!r} ({error})") from error
        if waiter.rank == 0:
            _stores[key] = _serve(host, port, waiter, _address_of(host, addresses, is_private=is_private))
        else:
            _stores[key] = client(host, port, waiter)
    return _stores[key]


def forget(host: str, port: int, rank: int) -> None:
    """Close the client of a store that is somebody else's."""
    _stores.pop((host, port, rank), None)


def client(host: str, port: int, waiter: Waiter) -> TCPStore:
    """A client of a store, which is waited for."""
    return connect(host, port, lambda: waiter.remaining_s, lambda reason: waiter.pause(lambda: [0], hint=reason))


def _address_of(host: str, addresses: list[str], *, is_private: bool) -> str | None:
    """The one address of this machine by which the others come; None: that is not known."""
    if is_private:
        return "127.0.0.1" if host == "localhost" else host
    # Some systems give a machine's own name an address of loopback, which others cannot know it by.
    return addresses[0] if len(addresses) == 1 and not is_loopback(addresses[0]) else None


def _serve(host: str, port: int, waiter: Waiter, address: str | None) -> TCPStore:
    try:
        try:
            listener = listen(address, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or address is None or is_loopback(address):
                raise
            address = None  # one that leads here, and that this machine does not know of (a container's host, a gateway)
            listener = listen(None, port)
    except OSError as error:
        raise ConfigError(
            f"{waiter.endpoint}: rank 0 cannot listen on port {port} of this machine ({error.strerror}). If another run "
            "or program uses it, choose another port, or end that"
        ) from error
    if address is None or not is_loopback(address):
        where = listening(host, address, port)
        print(f"lockstep: rank 0 keeps the store where the ranks meet: it {where}", file=sys.stderr, flush=True)
    return serve(listener, address, max(1.0, waiter.remaining_s))
