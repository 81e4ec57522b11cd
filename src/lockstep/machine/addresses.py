"""This machine's addresses and network interfaces, and which of them lead to another machine. Nothing is sent."""

from __future__ import annotations

import ipaddress
import socket

SOMEWHERE = "192.0.2.1"
"""An address of no host, kept for documentation: packets to it would leave as most do."""


def is_loopback(host: str) -> bool:
    """Whether these letters mean this machine to every machine: ``localhost``, ``127.0.0.1``, ``::1`` and their like."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_address(towards: str) -> str | None:
    """The address that this machine has for another one, or for itself under a name of its own; None: there is no way.

    Args:
        towards: a host name or address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_with(address: str) -> str | None:
    """The name of the interface that has an address; None: no interface has it that leads out of this machine."""
    import psutil  # only here: one machine never needs it

    plain = address.partition("%")[0]
    for name, found in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == plain for one in found):
            return None if name == "lo" or plain.startswith("127.") else name
    return None


def listening(host: str, address: str | None, port: int) -> str:
    """Where a TCP store of PyTorch's listens, and who can reach it: half a sentence and a warning, for the user.

    Args:
        host: as which others know this machine.
        address: the one that it listens on; None: all that this machine has.
        port: of the store.
    """
    endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if address is None:
        found = ", ".join(addresses_of(host))
        is_which = "a loopback address" if is_loopback(host) else "no address of this machine"
        why = f"{host} means {found} here" if found != host else f"it was given {host}, {is_which}"
        where = f"port {port} on all network interfaces ({why})"
    elif is_loopback(address):
        where = f"{endpoint}, which only this machine can reach"
    else:
        interface = interface_with(address) or "no interface of its own"
        where = f"{endpoint} ({interface})" if host == address else f"{endpoint} ({address}, {interface})"
    return (
        f"listens at {where}. It has no password: whoever can reach that port can run programs as you. Let no other machines "
        "through to it"
    )


def addresses_of(host: str) -> list[str]:
    """What a name means on this machine, the likeliest first; of an address, itself.

    Raises:
        OSError: it knows none.
    """
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


def outward_addresses() -> list[str]:
    """The addresses of this machine's interfaces by which others may reach it: those of IPv4, if there are any."""
    import psutil  # only here: see ``interface_with``

    stats = psutil.net_if_stats()
    all_there = [
        one
        for name, addresses in psutil.net_if_addrs().items()
        if name in stats and stats[name].isup
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6) and not _stays_here(one.address)
    ]
    plain = [one.address for one in all_there if one.family == socket.AF_INET]
    return plain or [one.address for one in all_there]


def _stays_here(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return found.is_loopback or found.is_link_local


def listen(address: str | None, port: int) -> socket.socket:
    """A socket that listens on one address of this machine or, with None, on all of them.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    if address is not None:
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
