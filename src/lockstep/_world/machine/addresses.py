"""This machine's addresses and network interfaces, and routes to other machines. No packets are
sent."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket

from lockstep._base.errors import ConfigError

SOMEWHERE = "192.0.2.1"
"""An address reserved for documentation, which takes the default route."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback one: ``localhost``, ``127.0.0.1``, ``::1`` and
    the like."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_loopback() -> None:
    """Checks that the processes of this machine can reach each other over its loopback interface.

    Raises:
        ConfigError: they cannot, since it is down, as it is in a new network namespace.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
            pass
    except OSError as error:
        if error.errno not in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN):
            return  # no descriptor is left, say: another matter, which whoever needs one reports
        raise ConfigError(
            f"127.0.0.1 cannot be reached ({error.strerror}): the loopback interface of this machine, "
            "container or network namespace is down, and processes of one machine need it. Bring it "
            "up, as root: ip link set lo up",
            code="loopback-down",
        ) from None


def with_port(host: str, port: int | str) -> str:
    """``HOST:PORT``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def source_address(towards: str) -> str | None:
    """The source address of this machine for packets to a host; None: there is no route.

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
    """The name of the interface with an address; None: there is none, or it is loopback."""
    import psutil  # not needed on a single machine

    plain = address.partition("%")[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == plain for entry in entries):
            return None if name == "lo" or plain.startswith("127.") else name
    return None


def listening(host: str, address: str | None, port: int) -> str:
    """Describes for the user where a TCP store of PyTorch listens and who can reach it.

    Args:
        host: the name or address by which others know this machine.
        address: the address on which it listens; None: all addresses of this machine.
    """
    endpoint = with_port(host, port)
    if address is None:
        resolved = "nothing"
        with contextlib.suppress(OSError):  # records of a cluster's DNS come and go
            resolved = ", ".join(addresses_of(host))
        kind = "a loopback address" if is_loopback(host) else "no address of this machine"
        reason = f"{host} means {resolved} here" if resolved != host else f"the host is {host}, {kind}"
        where = f"port {port} on all network interfaces ({reason})"
    elif is_loopback(address):
        where = f"{endpoint}, which only this machine can reach"
    else:
        interface = interface_with(address) or "no known interface"
        where = f"{endpoint} ({interface})" if host == address else f"{endpoint} ({address}, {interface})"
    return (
        f"listens at {where}. It has no password: anyone who can reach that port can run programs "
        "as you. Restrict it to the machines of this run"
    )


def addresses_of(host: str) -> list[str]:
    """The addresses to which a host name resolves on this machine, most preferred first.

    Raises:
        OSError: it does not resolve.
    """
    results = socket.getaddrinfo(host, 9, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in results))


def listen(address: str | None, port: int) -> socket.socket:
    """A socket listening on one address of this machine or, with None, on all of them.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    backlog = socket.SOMAXCONN  # a thousand may connect before the store is served there
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=backlog)
